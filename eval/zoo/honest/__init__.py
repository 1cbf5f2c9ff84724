"""Honest kernels, family by family."""
