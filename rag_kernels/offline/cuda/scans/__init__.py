"""Running totals and recurrent layers in CUDA."""
