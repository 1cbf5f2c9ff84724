"""Convolutions in CUDA as implicit products: of windows, pieces of images, and pixels in registers; their sums."""
