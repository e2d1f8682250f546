"""What uses the cluster: applications, groups, administrators; the actors of a run."""
