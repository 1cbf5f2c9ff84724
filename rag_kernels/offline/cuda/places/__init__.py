"""Sorts, ranks, scatters and segments in CUDA: elements whose places are computed."""
