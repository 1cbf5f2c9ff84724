"""The pages of the explorer, one file each."""
