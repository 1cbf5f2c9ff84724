"""Everything that a person or `--json` gets to see."""
