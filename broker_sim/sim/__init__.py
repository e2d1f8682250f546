"""The second host of the broker: everything in one process, on virtual time, from one seed.

Map: `scheduler` (clock and event heap), `disk`, `network` (what can break), `sim_broker` (drives
`core.broker.Broker`), `peer_links` (what brokers of a cluster send each other), `client` (runs
operations of `txnlog_spark.protocol`), `spark_driver` and `checkpoint` (a model of
Spark's driver and checkpoint), `reader` (slow, obvious readers), `neighbour` (other applications),
`log_oracle` and `invariants` (what must hold), `scenario` and `plants` (what is done to it),
`one_broker` (its machine), `world` (one run), `cli`.

With three brokers and their registry: `cluster` and `cluster_processes`, `cluster_faults` (kills,
losses of power and of disks, pauses, partitions, clean stops), `replica_oracle` and
`metadata_oracle` (what must hold between brokers), `cluster_clients` (plain clients beside the
query), `places` (who leads), `replication_plants`.

Deliberately absent: any real clock, socket, file, thread or process; the connector's codec and
sockets (the scalar codec of `wire` is the witness here). Only `cli` looks at a clock and starts
processes, around whole runs.
"""
