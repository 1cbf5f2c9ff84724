"""Products and convolutions in CUDA: a file for each way to compute them, and beside it the texts that it prints."""
