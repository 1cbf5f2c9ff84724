"""Fill the archive: functional forms, features and embeddings of problems, and kernels from elsewhere."""
