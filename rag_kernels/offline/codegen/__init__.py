"""What both languages share: loop nests, statements, parameters, reduction levels."""
