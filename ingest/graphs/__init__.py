"""A forward as a graph: recorded on fake tensors, made functional, and written as Python."""
