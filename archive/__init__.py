"""Remember: the DuckDB store, its vector index, and bundles to exchange kernels."""
