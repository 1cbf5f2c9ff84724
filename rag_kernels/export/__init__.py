"""A winner as a file."""
