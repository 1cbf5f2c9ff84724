"""Operators to values of the IR: the one room for whoever adds an operator."""
