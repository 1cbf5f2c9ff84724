"""What is taken of a product in its own tiles, before anything is stored: statistics of rows, sums of pixels."""
