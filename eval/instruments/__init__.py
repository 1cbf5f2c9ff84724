"""Sanitizers and Nsight Compute around a candidate."""
