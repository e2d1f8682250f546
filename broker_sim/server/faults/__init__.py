"""Faults by rule: a broker that fails at a request that a test has named."""
