"""Find archived kernels for a problem or a query, and say why each was found."""
