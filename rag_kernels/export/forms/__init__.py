"""The formats in which a kernel leaves the archive, a file each."""
