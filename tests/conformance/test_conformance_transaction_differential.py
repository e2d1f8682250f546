"""Random requests to two transaction coordinators, ours and Apache Kafka's: the same answers.

Each sequence runs on a fresh transactional id at both brokers. Producer ids differ, so answers are
compared as (error, which of the ids seen so far, epoch). CONCURRENT_TRANSACTIONS is retried: how
long markers take is no rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.availability import check_available
from support.librdkafka import create_topic
from support.raw import Connection, RawProducer

SEQUENCES = 60
REQUESTS = 14
KINDS = (
    "init", "resume", "add", "add", "add", "offsets",
    "commit v4", "abort v4", "commit v5", "abort v5", "commit v5", "abort v5",
)  # fmt: skip

Request = tuple[str, int, int]
"""(kind, whose identity: 0 the newest, 1 the one before, .., epoch added to it)."""


def build_sequence(seed: int) -> list[Request]:
    rng = random.Random(seed)
    sequence: list[Request] = [("init", 0, 0)]
    for _ in range(REQUESTS):
        age = rng.choice((0, 0, 0, 0, 1, 1, 2))
        drift = rng.choice((0, 0, 0, 0, 0, 0, -1, 1))
        sequence.append((rng.choice(KINDS), age, drift))
    return sequence


@dataclass
class Side:
    """One broker's view of a sequence."""

    producer: RawProducer
    topic: str
    identities: list[tuple[int, int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def ask(self, request: Request) -> tuple[str, int, int]:
        """(error, index of the producer id, epoch) after one request."""
        kind, age, drift = request
        if self.identities:
            producer_id, epoch = self.identities[max(-1 - age, -len(self.identities))]
            self.producer.producer_id = producer_id
            self.producer.producer_epoch = max(epoch + drift, 0)
        before = self.producer.identity
        error = self._send(kind)
        after = self.producer.identity
        if error == "NONE" and (after != before or kind in ("init", "resume")):
            if after[0] not in self.ids:
                self.ids.append(after[0])
            if after not in self.identities:
                self.identities.append(after)
        known = self.ids.index(after[0]) if after[0] in self.ids else -1
        return error, known, after[1]

    def _send(self, kind: str) -> str:
        producer = self.producer
        if kind in ("init", "resume"):
            return producer.init(resume=kind == "resume")
        if kind == "add":
            return producer.add_partitions(self.topic, 0)
        if kind == "offsets":
            return producer.add_offsets("differential")
        word, version = kind.split(" v")
        return producer.end(commit=word == "commit", version=int(version))


@pytest.mark.kafka
def test_random_requests_are_answered_alike(shared_brokers, unique):
    check_available("apache_kafka")
    brokers = [shared_brokers("broker_sim"), shared_brokers("apache_kafka")]
    topic = unique("differential")
    for broker in brokers:
        create_topic(broker.bootstrap_servers, topic, 1)
    with Connection(brokers[0].port) as ours, Connection(brokers[1].port) as theirs:
        for seed in range(SEQUENCES):
            sides = [
                Side(RawProducer(connection, unique(f"t{seed}")), topic)
                for connection in (ours, theirs)
            ]
            for side in sides:
                assert side.producer.find_coordinator() == "NONE"
            told = []
            for request in build_sequence(seed):
                told.append((request, *(side.ask(request) for side in sides)))
                assert told[-1][1] == told[-1][2], f"seed {seed}, (request, ours, theirs): {told}"
