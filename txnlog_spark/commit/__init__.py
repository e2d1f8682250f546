"""The whole life of a query's commits, without I/O: what runs is what the simulator runs.

docs/internals/commit-protocol.md is its theory: the steps, the rule, what lies where. `query.py`
and `batch_write.py` begin a commit, `micro_batch.py` is the one way of both. Everything that is not
here is asked of the host (`txnlog_kafka.operations.effects`): calls to brokers, time, files, staged
rows.
"""
