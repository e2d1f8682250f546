"""JSON texts as columns and back, as `from_json` and `to_json` have them."""
