"""Words and likeness of texts."""
