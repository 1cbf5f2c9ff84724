"""The candidate worker, where alone candidate code is loaded and run, and the programs that sanitizers run of it."""
