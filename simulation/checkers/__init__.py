"""Witnesses of a run: what was written, read, answered and kept, compared with what has to be."""
