"""Version, read by the build as well: the one place where it is written."""

__version__ = "0.1.0"
