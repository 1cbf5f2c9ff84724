"""Judges elsewhere: on other GPUs and other machines."""
