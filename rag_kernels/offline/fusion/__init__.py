"""Decide which values share a loop nest, what is stored, what is computed again, and what takes one pass."""
