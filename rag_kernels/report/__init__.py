"""Print results for people, and as JSON rows."""
