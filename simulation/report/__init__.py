"""Report of a run that failed: its end, its faults, and a smaller run that fails alike."""
