"""Fixed text of CUDA sources in pieces, of which a source has those that its kernels use."""
