"""What both coordinators share: partitioning, appending, flushing, timers, and a record codec."""
