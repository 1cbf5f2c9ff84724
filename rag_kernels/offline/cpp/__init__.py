"""Print regions and contractions as C++ with OpenMP."""
