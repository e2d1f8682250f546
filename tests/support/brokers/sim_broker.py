"""Brokers of ours behind the same few methods as `support.brokers.apache_kafka.ApacheKafka`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.brokers.probe import free_ports, ports_of
from support.brokers.processes import Startable
from support.raw.raw import Connection
from support.raw.requests import request

from broker_sim import REGISTRY, LocalCluster
from broker_sim.local_cluster import Config
from txnlog_kafka.wire.messages import ApiKey

SMALL_BROKER = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # Killed members have to be given up soon.
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Records of tests have stamps of years ago: only who asks for checks of retention gets them.
    "log.retention.check.interval.ms": "86400000",
}
"""Settings that `support.brokers.apache_kafka.SMALL_BROKER` has too, so that one test body fits
both."""
NODES = 3
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    # A broker that was killed is replaced as a leader within seconds.
    "registry.session.timeout.ms": "6000",
    "registry.heartbeat.interval.ms": "500",
}


class SimBroker(Startable):
    """broker_sim as one process, or as three with their registry and with every partition on all
    three.

    A context manager; killed brokers restart on the same port. A method that takes the number of a
    broker means the first broker if no number is given.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, str] | None = None,
        *,
        brokers: int = 1,
        racks: Sequence[str] = (),
        own: Sequence[Config] = (),
        ports: Sequence[int] = (),
        transaction_version: int = 2,
        security: Any = None,
    ) -> None:
        """`own` has settings of each broker alone; `security` is of `secured_kafka` or
        `tls_kafka`."""
        self.name = "broker_sim" if brokers == 1 else "broker_sim_cluster"
        self.folder = folder
        self.numbers = range(brokers)
        # Such that nobody else is given while a broker is down.
        self.ports = list(ports) or free_ports(brokers)
        self.security = security
        settings = (SMALL_BROKER if brokers == 1 else REPLICATED) | (config or {})
        if transaction_version != 2:
            settings["transaction.version"] = str(transaction_version)
        own = [{"broker.rack": rack} for rack in racks] or own
        if security is not None:
            plain = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}
            address = f"PLAINTEXT://127.0.0.1:{self.ports[0]}"
            plain |= dict.fromkeys(("listeners", "advertised.listeners"), address)
            settings = security.settings(plain) | settings
        self.cluster = LocalCluster(folder, brokers, settings, self.ports, broker_configs=own)
        self.data_dir = self.cluster.broker_dir(0)

    def start(self) -> None:
        """Start on the data directory; return when the brokers serve clients."""
        self.cluster.start()
        if self.security is not None:
            self.security.opened(self.bootstrap_servers)

    def stop(self) -> None:
        self.cluster.stop()

    def stop_one(self, number: int) -> None:
        self.cluster.stop(number)

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def port(self) -> int:
        return ports_of(self.bootstrap_servers)[0]

    @property
    def alive(self) -> bool:
        return self.cluster.is_running(0)

    @property
    def live_port(self) -> int:
        return next(p for n, p in enumerate(self.ports) if self.cluster.is_running(n))

    @property
    def pids(self) -> list[int]:
        """Process ids of all running processes; the registry's comes first, if there is a
        registry."""
        numbers = [*([] if len(self.ports) == 1 else [REGISTRY]), *self.numbers]
        return [self.cluster.pid(number) for number in numbers if self.cluster.is_running(number)]

    def port_of(self, number: int) -> int:
        return self.ports[number]

    def kill(self, number: int = 0) -> None:
        if self.cluster.is_running(number):
            self.cluster.kill(number)

    def restart(self, number: int = 0) -> None:
        """SIGKILL if it runs, then start on the same port."""
        self.kill(number)
        self.cluster.start(number)

    launch = restart
    """Same as `restart`, while another broker is down: waits for no broker."""

    def controller(self) -> int:
        with Connection(self.live_port) as connection:
            return int(connection.ask(request(ApiKey.DESCRIBE_CLUSTER), 0).controller_id)
