"""Staged batches on their way from the tasks to the committer. Small output travels in the commit
message; larger output goes through the driver's staging server, or through a file system that tasks
and driver share.

`chunks` and `messages` describe the staged output, `writer` is a task's side, `reader` the
committer's. `frames`, `store` and `server` are the staging server, a process beside Spark's driver;
`address` starts or finds it.
"""
