"""From source text to something that can be loaded."""
