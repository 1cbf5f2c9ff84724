"""The writer that asks language models."""
