"""`broker_sim` behind the same few methods as `support.apache_kafka.ApacheKafka`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL_BROKER = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""What `support.apache_kafka.SMALL_BROKER` sets too, so that one test body fits both."""


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
        self.data_dir = folder / "data"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = SMALL_BROKER | (config or {})
        if transaction_version != 2:
            self._config["transaction.version"] = str(transaction_version)
        self._cluster: Any = None
        self.bootstrap_servers = ""

    def __enter__(self) -> SimBroker:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start on the data directory; return when the broker serves clients."""
        if self._cluster is not None:
            self._cluster.restart(0)
            return
        from broker_sim import LocalCluster

        self._cluster = LocalCluster(self.data_dir, brokers=1, config=self._config)
        self._cluster.__enter__()
        self.bootstrap_servers = self._cluster.bootstrap_servers

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return int(self.bootstrap_servers.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._cluster.kill(0)

    def restart(self) -> None:
        """Start again what was killed."""
        self._cluster.kill(0)
        self._cluster.restart(0)

    def stop(self) -> None:
        """A clean stop."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
