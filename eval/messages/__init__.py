"""What the judge and its workers say to each other."""
