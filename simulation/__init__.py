"""The second host of broker and connector: all in one process, on virtual time, from one seed.

`scenario` says what is done, `world` is one run, `cli` runs seeds: `python -m simulation`. In
`hosts` are what the code runs on, with what can break (scheduler, clock, disk, network, brokers and
their registry, clients, and a model of Spark's driver, tasks, staging and checkpoint); in `faults`
who breaks it; in `load` who uses it (a query's operator, readers, other applications, groups,
administrators); in `checkers` what must hold, and who watches it; in `report` the trace, the table
of faults by state, and what is printed of a failure. Deliberate bugs are in `tests/planted`.

Deliberately absent: any real clock, socket, file, thread or process; the connector's codec and
sockets (the scalar codec of `txnlog_kafka.wire` is the witness here). Only `cli` looks at a clock
and starts processes, around whole runs.
"""
