"""Faults of a run: processes, disks, networks, clocks, at random or as a scenario says."""
