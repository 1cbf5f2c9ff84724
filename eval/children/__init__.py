"""What runs in child processes only: nobody imports it, the judge starts it by name."""
