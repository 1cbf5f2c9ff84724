"""Arithmetic that a kernel may change: what is rounded, divided and compared, and how exactly."""
