"""A problem examined by itself: what its outputs depend on, how exact they are owed, and what must not pass."""
