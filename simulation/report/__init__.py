"""What is said of a run that failed: its end, the faults it had, a smaller run that fails alike."""
