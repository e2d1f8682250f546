"""Random requests to two brokers, ours and Apache Kafka's: the same answers, and the same records.

Each sequence (`support.histories.transaction_steps`) runs on a fresh transactional id and group at
both brokers. The answers, the admin views, and in the end the batches and aborted transactions that
readers get have to be equal. One thread per broker, one request at a time: Kafka mixes the requests
of several connections into one verification, and then answers one in the words meant for the other.

A failure prints its seed and the shortest part of the sequence that still differs.

What Apache Kafka answers to the seeds of `make test` is recorded: our core is asked alone, and both
brokers only when what it was asked and answered is not as recorded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import create_topic
from support.core.broker_build import BrokerOnDisk
from support.harness.recordings import wants_live
from support.harness.transcripts import Transcript, digest, read_transcripts, write_transcripts
from support.histories.transaction_steps import Side, Step, build_sequence
from support.raw.raw import Connection

STEPS = 14
SEEDS = {2: range(400), 1: range(400, 650)}
"""Seeds of each transaction.version; `make chaos` runs more seeds."""
CHAOS_SEEDS = {2: range(2000), 1: range(400, 1900)}
DIFFERENCES_MAX = 3
"""Number of differing sequences that are reduced and shown; further ones are counted."""

Answers = list[Any]
Named = tuple[str, Sequence[Step]]
"""A sequence and its transactional id and group, which decide on coordinators' partitions."""


class Pair:
    """Brokers of both kinds, each with a topic of two partitions."""

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

    def answers(self, named: Sequence[Named]) -> list[tuple[Answers, Answers]]:
        """(ours, theirs) of each sequence."""
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(self._run, broker, named) for broker in self._brokers]
            return list(zip(*(job.result() for job in jobs), strict=True))

    def _run(self, broker: Any, named: Sequence[Named]) -> list[Answers]:
        with Connection(broker.port) as connection:
            return [run_one(connection, self._topic, *each, **self._settings) for each in named]

    def reduce(self, sequence: Sequence[Step]) -> str:
        """The shortest part of a differing sequence that still differs, step by step."""
        kept, differing = list(sequence), None
        for index in reversed(range(1, len(sequence))):
            shorter = kept[:index] + kept[index + 1 :]
            ((ours, theirs),) = self.answers([(self._name("shorter"), shorter)])
            if ours != theirs:
                kept, differing = shorter, (ours, theirs)
        if differing is None:
            ((ours, theirs),) = self.answers([(self._name("shorter"), kept)])
            differing = ours, theirs
        lines = [
            f"  {step}\n    ours   {ours}\n    theirs {theirs}"
            for step, ours, theirs in zip([*kept, "finish"], *differing, strict=True)
        ]
        return "\n".join(lines)


def run_one(
    connection: Any, topic: str, name: str, sequence: Sequence[Step], **settings: bool
) -> Answers:
    """Run a sequence on one broker; return its answers and the records that are readable at the
    end."""
    side = Side(connection, topic, name, name, **settings)
    return [*(side.ask(step) for step in sequence), side.finish()]


@pytest.fixture(scope="module", params=[2, 1], ids=["version 2", "version 1"])
def version(request) -> int:
    """transaction.version"""
    return request.param


@pytest.fixture(scope="module")
def new_pair(version, shared_brokers, tmp_path_factory, unique_names) -> Iterator[Callable]:
    """Makes a pair of brokers with this transaction.version."""
    folder = tmp_path_factory.mktemp(f"version-{version}")
    with ExitStack() as running:

        def make() -> Pair:
            ours = SimBroker(folder / "broker_sim", transaction_version=version)
            running.enter_context(ours)
            if version == 2:
                theirs = shared_brokers("apache_kafka")
            else:
                theirs = ApacheKafka(folder / "apache_kafka", transaction_version=version)
                running.enter_context(theirs)
            topic, are_shared = unique_names("differential"), version == 2
            return Pair([ours, theirs], topic, unique_names, are_shared=are_shared)

        yield make


def named(seeds: range) -> list[Named]:
    """The sequences of these seeds, by the same names for ever."""
    kind = f"differential-of-{len(seeds)}"
    return [(f"{kind}-{seed}", build_sequence(seed, STEPS)) for seed in seeds]


def transcripts(seeds: range, answers: Sequence[Answers]) -> dict[int, Transcript]:
    """Digests of each step and its answer, by seed."""
    told = zip(seeds, named(seeds), answers, strict=True)
    return {
        seed: [digest(each) for each in zip([*sequence, "finish"], answered, strict=True)]
        for seed, (_, sequence), answered in told
    }


def is_as_recorded(version: int, seeds: range, known: dict[int, Transcript]) -> bool:
    """Return True if broker_sim's core alone gives the recorded answers of Apache Kafka."""
    partitions = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
    ours = BrokerOnDisk({**partitions, "transaction.version": version})
    ours.create_topic("differential", 2)
    shown = {"shows_coordinator_epochs": version == 1}
    answers = [run_one(ours, "differential", *each, **shown) for each in named(seeds)]
    found = transcripts(seeds, answers)
    differing = [seed for seed in seeds if found[seed] != known.get(seed)]
    if differing:
        warnings.warn(f"asking Apache Kafka: not as recorded: seeds {differing}", stacklevel=2)
    return not differing


def check_alike(pair: Pair, seeds: range) -> list[Answers]:
    """The answers of both brokers; fails with the differing seeds, the first few reduced."""
    sequences = named(seeds)
    answers = pair.answers(sequences)
    differing = [
        (seed, sequence)
        for seed, (_, sequence), (ours, theirs) in zip(seeds, sequences, answers, strict=True)
        if ours != theirs
    ]
    shown = [f"seed {seed}:\n{pair.reduce(steps)}" for seed, steps in differing[:DIFFERENCES_MAX]]
    assert not differing, f"{len(differing)} of {len(seeds)} sequences differ\n" + "\n".join(shown)
    return [ours for ours, _ in answers]


@pytest.mark.kafka
@pytest.mark.recordable
def test_random_requests_are_answered_alike(version, new_pair, pytestconfig):
    name, seeds = f"transactions-{version}", SEEDS[version]
    records = pytestconfig.getoption("--record")
    known = {} if records or wants_live() else read_transcripts(name)
    if known and is_as_recorded(version, seeds, known):
        return
    answers = check_alike(new_pair(), seeds)
    if records:
        write_transcripts(name, transcripts(seeds, answers))


@pytest.mark.kafka
@pytest.mark.chaos
def test_many_random_requests_are_answered_alike(version, new_pair):
    check_alike(new_pair(), CHAOS_SEEDS[version])
