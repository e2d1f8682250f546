"""Kafka's definitions of its messages; `tests/support/kafka_definitions.py` derives them."""
