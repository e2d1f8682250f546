"""Four client libraries see one of three brokers go: broker_sim's and Apache Kafka's alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.clients.failover.clients import LIBRARIES
from support.clients.failover.clusters import KINDS
from support.clients.failover.story import FAULTS, Result, play
from support.harness.availability import available

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.kafka]

BY_CHANCE = {("kafka-python", "transact")}
"""When its coordinator goes, it waits for that broker for ever, or goes on: as the moment has it,
on both kinds of brokers."""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Callable[[str, str], Result]:
    """`results(kind, fault)`: all stories of one kind are played on one cluster, one at a time."""
    played: dict[str, dict[str, Result]] = {}

    def of(kind: str, fault: str) -> Result:
        if kind not in played:
            for command in LIBRARIES.values():
                available(command)
            folder = tmp_path_factory.mktemp("failover")
            with KINDS[kind](folder / "cluster") as cluster:
                played[kind] = {each: play(cluster, each, LIBRARIES, folder) for each in FAULTS}
        return played[kind][fault]

    return of


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_and_every_client_goes_on(results, kind, fault):
    outcomes = results(kind, fault).outcomes
    assert [each for each in outcomes if each.lost] == []
    written = [each for each in outcomes if each.work in ("produce", "transact")]
    assert [each for each in written if each.doubled] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_every_client_ends_as_it_does_on_apache_kafka(results, fault):
    ours, kafkas = (
        [each.verdict for each in results(kind, fault).outcomes
         if (each.library, each.work) not in BY_CHANCE]
        for kind in KINDS
    )  # fmt: skip
    assert ours == kafkas
