"""Common parts of both coordinators: partitioning, append, flush, timers, record codec."""
