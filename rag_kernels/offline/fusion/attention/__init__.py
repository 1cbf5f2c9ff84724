"""Attention in a graph, and products chained to products (its gradients), as steps of their own."""
