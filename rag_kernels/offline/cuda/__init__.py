"""Print regions and contractions as CUDA."""
