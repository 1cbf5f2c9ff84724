"""The rule by which speed is told."""
