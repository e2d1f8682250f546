"""Brokers, Spark jobs and plain readers that tests start and look at the world with."""
