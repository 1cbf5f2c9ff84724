"""Honest bodies in C++ of the zoo's problems, a file for each family of them."""
