"""Make small faults in honest kernels, show that they are faults, and count those that the judge does not see."""
