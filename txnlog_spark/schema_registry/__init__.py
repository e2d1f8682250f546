"""Schema registries with Confluent's REST interface, and the wire format that goes with them.

`options` says how to reach a registry and what the subjects are called, `client` asks it, and
`wire_format` takes schema ids out of values and puts them in.
"""
