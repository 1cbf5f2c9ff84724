"""A problem in the words that retrieval works on: operators, features, text and embedding."""
