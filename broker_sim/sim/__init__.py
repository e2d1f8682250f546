"""The second host of the broker: everything in one process, on virtual time, from one seed.

Map: `scheduler` (clock and event heap), `disk`, `network` (what can break), `sim_broker` (drives
`core.broker.Broker`), `client` (runs operations of `txnlog_spark.protocol`), `driver` (a model of
Spark's driver and checkpoint), `reader` (slow, obvious readers), `neighbour` (other applications),
`log_oracle` and `invariants` (what must hold), `scenario` and `plants` (what is done to it),
`world` (one run), `cli`.

Deliberately absent: any real clock, socket, file, thread or process; the connector's codec and
sockets (the scalar codec of `wire` is the witness here). Only `cli` looks at a clock and starts
processes, around whole runs.
"""
