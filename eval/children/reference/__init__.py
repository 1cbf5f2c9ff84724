"""The worker that runs the problem's own module: draws, what is right, and what a candidate is compared with."""
