"""Avro values as columns and back, as `from_avro` and `to_avro` have them."""
