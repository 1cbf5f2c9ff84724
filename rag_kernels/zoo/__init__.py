"""Run the zoo of cheating and honest kernels against the judge."""
