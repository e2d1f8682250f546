"""The second host of broker and connector: all in one process, on virtual time, from one seed.

`scenario` says what is done (`scenario_loading` reads it or draws it), `world` is one run, over
`one_broker` or a `cluster`, and `cli` runs seeds: `python -m simulation`. `trace` has a line for
all that happens, `coverage` counts faults by state, `violation` is what a witness raises. In
`hosts` are what the code runs on, with what can break (scheduler, clock, disk, network, brokers and
their registry, clients, and a model of Spark's driver, tasks, staging and checkpoint); in `faults`
the faults; in `load` its users (a query's operator, readers, other applications, groups,
administrators); in `checkers` what must hold, and its witnesses. `failure_report` has what is
printed of a failure, and finds a smaller run that fails in the same way. Deliberate bugs are in
`tests/planted`.

Deliberately absent: any real clock, socket, file, thread or process; the connector's codec and
sockets (the scalar codec of `txnlog_kafka.wire` is the witness here). Only `cli` looks at a clock
and starts processes, around whole runs.
"""
