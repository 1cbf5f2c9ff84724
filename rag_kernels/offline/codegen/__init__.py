"""The parts of code generation that both languages share: loop nests, statements, parameters, reduction levels."""
