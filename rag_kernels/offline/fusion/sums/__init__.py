"""Sums and other reductions: their factors, their parts, and how they take one pass."""
