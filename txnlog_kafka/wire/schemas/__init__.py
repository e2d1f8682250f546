"""Kafka's definitions of its messages; `tests/support/kafka/kafka_definitions.py` derives them."""
