"""Oracle, draws and comparison of outputs. Runs in child processes only: the judge starts them by name."""
