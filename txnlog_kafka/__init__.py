"""A client of Apache Kafka in Python: its messages, its operations, and their host."""
