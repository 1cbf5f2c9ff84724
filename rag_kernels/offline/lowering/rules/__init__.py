"""Rules that turn operators into values, a file for each kind of operator; `coverage.py` says which takes which."""
