"""The formats in which a kernel leaves the archive: a file is one where its first line names it and says what it is."""
