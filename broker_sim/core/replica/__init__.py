"""The partitions of this broker: their logs, what is appended to them, who waits for that."""
