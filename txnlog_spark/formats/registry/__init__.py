"""A client of schema registries with Confluent's REST interface."""
