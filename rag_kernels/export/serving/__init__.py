"""A kernel called as a module's forward or a torch operator, where it was verified: what exported files carry along."""
