"""Exactly-once, proven: for any job on Kafka and any sink."""
