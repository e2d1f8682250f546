"""The whole life of a query's commits, without I/O: the simulator runs the same code.

docs/internals/commit-protocol.md is its theory: the steps, the rule, and where everything lies.
`query.py` and `batch_write.py` begin a commit, and `micro_batch.py` commits for both. The commit
asks the host (`txnlog_kafka.operations.effects`) for calls to brokers, time, files and staged rows.
"""
