"""Scores with intervals, and what retrieval is worth."""
