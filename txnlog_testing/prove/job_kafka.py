"""Broker and folder that a job under test gets as `kafka`."""

from __future__ import annotations

from pathlib import Path

from broker_sim.client.kafka import Kafka


class JobKafka(Kafka):
    """A broker with the helpers of `Kafka`, and a folder for the files of this run of the job."""

    def __init__(self, bootstrap_servers: str, folder: str) -> None:
        super().__init__(bootstrap_servers)
        self.folder = folder

    def path(self, name: str) -> str:
        """Return a path for files that the job reads or writes, which no other run has."""
        return str(Path(self.folder) / name)
