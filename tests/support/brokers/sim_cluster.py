"""Three brokers of broker_sim and their registry, with everything on all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from support.brokers.probe import free_ports, wait_until
from support.raw.raw import Connection, message_class

from broker_sim.local_cluster import LocalCluster
from txnlog_kafka.wire.messages import ApiKey

NODES = 3
REPLICATED = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    # A broker that was killed is replaced as a leader within seconds.
    "registry.session.timeout.ms": 6000,
    "registry.heartbeat.interval.ms": 500,
}


class RackedCluster(LocalCluster):
    """A cluster whose brokers stand in these racks."""

    racks: Sequence[str] = ()

    def _write_config(self, broker_id: int) -> Path:
        path = super()._write_config(broker_id)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"broker.rack={rack}\n" for rack in self.racks[broker_id:][:1])
        return path


class SimCluster:
    """All brokers. A context manager; `bootstrap_servers` is good from construction on."""

    name = "broker_sim_cluster"
    numbers = tuple(range(NODES))

    def __init__(
        self, folder: Path, config: dict[str, str] | None = None, racks: Sequence[str] = ()
    ) -> None:
        self.ports = free_ports(NODES)
        self._cluster = RackedCluster(folder, NODES, REPLICATED | (config or {}), self.ports)
        self._cluster.racks = racks
        self.bootstrap_servers = self._cluster.bootstrap_servers

    def __enter__(self) -> SimCluster:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the registry and all brokers."""
        self._cluster.start()

    def stop(self) -> None:
        """Stop them cleanly."""
        self._cluster.stop()

    def kill(self, number: int) -> None:
        """SIGKILL one."""
        self._cluster.kill(number)

    def stop_one(self, number: int) -> None:
        """Stop one cleanly."""
        os.kill(self._cluster.pid(number), signal.SIGTERM)
        wait_until(lambda: not self._cluster.is_running(number), "the broker's end")

    def controller(self) -> int:
        """The number of the broker that is the controller."""
        request = message_class(ApiKey.DESCRIBE_CLUSTER)()
        with Connection(self.live_port) as connection:
            return int(connection.ask(request, 0).controller_id)

    def restart(self, number: int) -> None:
        """Start one that was killed or stopped."""
        self._cluster.start(number)

    launch = restart
    """The same while another one is down: nobody is waited for."""

    def port(self, number: int) -> int:
        """Of one broker, by its id."""
        return self.ports[number]

    @property
    def live_port(self) -> int:
        """The port of one that is up."""
        return next(p for n, p in enumerate(self.ports) if self._cluster.is_running(n))
