"""Lower ATen operators to values of the IR: the one package to change for a new operator."""
