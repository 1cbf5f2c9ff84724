"""What a problem is by its graph: operators, steps, ties, constants; and which kinds of inputs tell most of it."""
