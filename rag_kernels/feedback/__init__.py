"""Explain a verdict to the writer of the next draft."""
