"""Folder for PYTHONPATH, whose `sitecustomize` arms each Python process that starts."""
