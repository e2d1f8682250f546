"""Protobuf messages as columns and back, as `from_protobuf` and `to_protobuf` have them."""
