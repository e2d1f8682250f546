"""`broker_sim` behind the same few methods as `support.brokers.apache_kafka.ApacheKafka`."""

from __future__ import annotations

from pathlib import Path

from support.brokers.probe import free_ports

from broker_sim import LocalCluster

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
"""What `support.brokers.apache_kafka.SMALL_BROKER` sets too, so that one test body fits both."""


class SimBroker:
    """One broker process of ours. A context manager; killed ones restart on the same port."""

    name = "broker_sim"

    def __init__(
        self,
        folder: Path,
        config: dict[str, str] | None = None,
        *,
        transaction_version: int = 2,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        settings = SMALL_BROKER | (config or {})
        if transaction_version != 2:
            settings["transaction.version"] = str(transaction_version)
        self._cluster = LocalCluster(folder, config=settings)
        # One that nobody else is given while the broker is down.
        (self._cluster._ports[0],) = free_ports(1)
        self.data_dir = self._cluster.broker_dir(0)

    def __enter__(self) -> SimBroker:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start on the data directory; return when the broker serves clients."""
        self._cluster.start()

    @property
    def bootstrap_servers(self) -> str:
        """What clients need; the port stays the same over restarts."""
        return self._cluster.bootstrap_servers

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._cluster.is_running(0)

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return int(self.bootstrap_servers.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self.alive:
            self._cluster.kill(0)

    def restart(self) -> None:
        """SIGKILL if it runs, then start on the same port."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """A clean stop."""
        self._cluster.stop()
