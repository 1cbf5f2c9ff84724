"""What is stored and where: which values get a buffer, in which order of dimensions, and which are computed again."""
