"""Clients of tests and commands: what is written to topics and read from them."""
