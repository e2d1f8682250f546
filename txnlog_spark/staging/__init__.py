"""Staged batches on their way from the tasks to the committer: in the commit message while they are
small, else through the staging server of the driver, or a file system that both sides reach.

`chunks` and `messages` say what was staged, `writer` is a task's side, `reader` the committer's.
`frames`, `store` and `server` are the staging server, a process beside Spark's driver; `address`
starts or finds it.
"""
