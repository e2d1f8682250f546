"""What a run says of itself: its trace, what it covered, how it failed, a smaller failing run."""
