"""Schema registries with Confluent's REST interface.

`options` says how to reach one and what the subjects are called, `client` asks it.
"""
