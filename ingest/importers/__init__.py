"""Read kernels of other collections as claims; one file a source."""
