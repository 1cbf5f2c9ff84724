"""The version of this package, in one place."""

__version__ = "0.1.0"
