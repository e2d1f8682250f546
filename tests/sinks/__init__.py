"""Sinks of others and ours under `exactly_once`: `make sinks` writes docs/sinks.md."""
