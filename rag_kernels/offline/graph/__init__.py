"""Read and rewrite ATen graphs: nodes, subgraph matches, rewrites, concatenations that grow."""
