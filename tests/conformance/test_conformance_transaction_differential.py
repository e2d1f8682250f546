"""Random requests to two brokers, ours and Apache Kafka's: the same answers, and the same records.

Each sequence (see `support.transaction_steps`) runs on a fresh transactional id and group at both
brokers; answers, admin views, and in the end the batches and aborted transactions that readers
get, have to be equal. One thread per broker, one request at a time: Kafka mixes the requests of
several connections into one verification, and then answers one in the words meant for the other.

A failure prints its seed and the shortest part of the sequence that still differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.apache_kafka import ApacheKafka
from support.availability import check_available
from support.librdkafka import create_topic
from support.raw import Connection
from support.sim_broker import SimBroker
from support.transaction_steps import Side, Step, build_sequence

STEPS = 14
SEEDS = {2: range(400), 1: range(400, 650)}
"""Which seeds run under which transaction.version; `make chaos` runs more of them."""
CHAOS_SEEDS = {2: range(1000, 3000), 1: range(5000, 6500)}
DIFFERENCES_MAX = 3
"""So many differing sequences are reduced and shown, the others are counted."""

Answers = list[Any]


class Pair:
    """One broker of each kind, with a topic of two partitions."""

    def __init__(
        self,
        brokers: Sequence[Any],
        topic: str,
        name: Callable[[str], str],
        *,
        are_shared: bool,
    ) -> None:
        self._brokers = brokers
        # Other tests restart the shared ones, which raises coordinator epochs.
        self._settings = {"shows_coordinator_epochs": not are_shared}
        self._topic = topic
        self._name = name
        for broker in brokers:
            create_topic(broker.bootstrap_servers, topic, 2)

    def answers(self, sequences: Sequence[Sequence[Step]]) -> list[tuple[Answers, Answers]]:
        """(ours, theirs) of each sequence."""
        named = [(self._name("differential"), sequence) for sequence in sequences]
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(self._run, broker, named) for broker in self._brokers]
            return list(zip(*(job.result() for job in jobs), strict=True))

    def _run(self, broker: Any, named: Sequence[tuple[str, Sequence[Step]]]) -> list[Answers]:
        with Connection(broker.port) as connection:
            return [self._run_one(connection, *each) for each in named]

    def _run_one(self, connection: Connection, name: str, sequence: Sequence[Step]) -> Answers:
        side = Side(connection, self._topic, name, name, **self._settings)
        return [*(side.ask(step) for step in sequence), side.finish()]

    def reduce(self, sequence: Sequence[Step]) -> str:
        """The shortest part of a differing sequence that still differs, step by step."""
        kept, differing = list(sequence), None
        for index in reversed(range(1, len(sequence))):
            shorter = kept[:index] + kept[index + 1 :]
            ((ours, theirs),) = self.answers([shorter])
            if ours != theirs:
                kept, differing = shorter, (ours, theirs)
        if differing is None:
            ((ours, theirs),) = self.answers([kept])
            differing = ours, theirs
        lines = [
            f"  {step}\n    ours   {ours}\n    theirs {theirs}"
            for step, ours, theirs in zip([*kept, "finish"], *differing, strict=True)
        ]
        return "\n".join(lines)


@pytest.fixture(scope="module", params=[2, 1], ids=["version 2", "version 1"])
def pair(request, shared_brokers, tmp_path_factory, unique_names) -> Iterator[tuple[int, Pair]]:
    """(transaction.version, the two brokers)."""
    check_available("apache_kafka")
    version = request.param
    topic = unique_names("differential")
    if version == 2:
        brokers = [shared_brokers("broker_sim"), shared_brokers("apache_kafka")]
        yield version, Pair(brokers, topic, unique_names, are_shared=True)
        return
    folder = tmp_path_factory.mktemp("version-1")
    with (
        SimBroker(folder / "broker_sim", transaction_version=version) as ours,
        ApacheKafka(folder / "apache_kafka", transaction_version=version) as theirs,
    ):
        yield version, Pair([ours, theirs], topic, unique_names, are_shared=False)


def check_alike(pair: Pair, seeds: range) -> None:
    """Fails with the differing seeds, the first few of them reduced."""
    sequences = [build_sequence(seed, STEPS) for seed in seeds]
    answers = pair.answers(sequences)
    differing = [
        (seed, sequence)
        for seed, sequence, (ours, theirs) in zip(seeds, sequences, answers, strict=True)
        if ours != theirs
    ]
    shown = [f"seed {seed}:\n{pair.reduce(steps)}" for seed, steps in differing[:DIFFERENCES_MAX]]
    assert not differing, f"{len(differing)} of {len(seeds)} sequences differ\n" + "\n".join(shown)


@pytest.mark.kafka
def test_random_requests_are_answered_alike(pair):
    version, brokers = pair
    check_alike(brokers, SEEDS[version])


@pytest.mark.kafka
@pytest.mark.chaos
def test_many_random_requests_are_answered_alike(pair):
    version, brokers = pair
    check_alike(brokers, CHAOS_SEEDS[version])
