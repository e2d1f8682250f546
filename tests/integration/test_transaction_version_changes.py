"""The cluster's transaction.version is changed under a run, as an administrator may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.harness.availability import check_available
from support.kafka.java_tools import FEATURES, JavaHost
from support.query.checkpoint_query import Query

from txnlog_spark.client_cache import client_for
from txnlog_spark.errors import FatalError

pytestmark = [pytest.mark.kafka, pytest.mark.only_kafka]


class Versions:
    """A broker whose transaction.version Kafka's own tool changes, and a query on it."""

    def __init__(self, folder: Path, java: JavaHost, unique: Callable[[str], str]) -> None:
        self.kafka = ApacheKafka(folder / "kafka")
        self.kafka.start()
        self._java = java
        self.query = Query(self.kafka, folder / "checkpoint", unique)
        self.batches = 0

    def change(self, how: str, level: int) -> None:
        server = ("--bootstrap-server", self.kafka.bootstrap_servers)
        self._java.ok(FEATURES, *server, how, "--feature", f"transaction.version={level}")

    def commit(self) -> None:
        """The next batch."""
        self.query.commit(self.batches, [f"{self.batches}a", f"{self.batches}bb"])
        self.batches += 1

    def check(self) -> None:
        """Each row of each batch once."""
        rows = [f"{n}{each}" for n in range(self.batches) for each in ("a", "bb")]
        assert self.query.values() == sorted(rows)


@pytest.fixture
def versions(tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Versions]:
    check_available("apache_kafka")
    with JavaHost(tmp_path / "java") as java:
        made = Versions(tmp_path, java, unique)
        try:
            yield made
        finally:
            made.kafka.stop()


def test_a_run_goes_on_with_the_version_that_the_coordinator_has_now(versions: Versions) -> None:
    versions.commit()
    for how, level in (("downgrade", 1), ("upgrade", 2), ("downgrade", 1)):
        versions.commit()
        versions.change(how, level)
        versions.commit()
    versions.check()


def test_what_the_refusal_after_a_lowering_to_0_advises_lets_the_run_go_on(
    versions: Versions,
) -> None:
    """Kafka cannot write the state of a transactional id that was used with version 2 any more."""
    versions.commit()
    versions.change("downgrade", 0)
    with pytest.raises(FatalError, match=r"transaction\.version was lowered.*upgrade --feature"):
        versions.commit()
    versions.change("upgrade", 2)
    client_for(versions.query.settings.connection).close()
    versions.kafka.stop()
    versions.kafka.start()
    versions.commit()
    versions.commit()
    versions.check()
