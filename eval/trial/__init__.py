"""Is a candidate right, how fast is it, and what kind of result is it?"""
