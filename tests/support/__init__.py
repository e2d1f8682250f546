"""What the tests start and look at the world with: brokers, Spark jobs, plain readers."""
