"""Users of the cluster, the actors of a run: applications, groups, administrators."""
