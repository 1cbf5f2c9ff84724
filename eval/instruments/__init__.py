"""Sanitizers, Nsight Compute and disassemblers around a candidate."""
