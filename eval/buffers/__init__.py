"""Bytes that two processes see, and content for every call."""
