"""Attention and chained products in CUDA, on mma.sync and on wgmma."""
