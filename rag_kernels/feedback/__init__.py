"""Say what a verdict teaches the next draft."""
