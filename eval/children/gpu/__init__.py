"""What workers do on a GPU: memory that two of them share, buffers around a call, and the delay before a burst."""
