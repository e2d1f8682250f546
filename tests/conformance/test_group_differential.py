"""Random requests to two group coordinators, ours and Apache Kafka's: the same answers.

JoinGroup and SyncGroup that one broker parks are parked by the other, and released by the same
request with the same answer. After every request the group's description and its offsets are the
same too. A sequence ends early when the leader is gone: who is the next one depends on Kafka's
random member ids.

What Apache Kafka answers to the sequences of `make test` is recorded: ours is asked alone, and both
only when what it was asked and told is not as recorded.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.clients.librdkafka import create_topic
from support.core.broker_build import BrokerOnDisk, request
from support.harness.recordings import wants_live
from support.harness.transcripts import Transcript, read_transcripts, write_transcripts
from support.lives.group_pair import GROUPS, ORDERED, OtherLeader, Pair, find_coordinators
from support.lives.group_sequence import REQUESTS, TOPICS, Sequence

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

K = ApiKey
SEQUENCES = 200
SEQUENCES_LONG = 1_500
OTHER_LEADER = "other-leader"
"""Ends the transcript of a sequence in which Kafka's next leader was another one."""
EXPECTED = {
    "JoinGroup": {
        "NONE", "MEMBER_ID_REQUIRED", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID",
        "INCONSISTENT_GROUP_PROTOCOL", "INVALID_SESSION_TIMEOUT",
        "GROUP_MAX_SIZE_REACHED", "UNKNOWN_SERVER_ERROR", "parked",
    },
    "SyncGroup": {
        "NONE", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS",
        "FENCED_INSTANCE_ID", "INCONSISTENT_GROUP_PROTOCOL", "parked",
    },
    "Heartbeat": {
        "NONE", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS",
        "FENCED_INSTANCE_ID",
    },
    "LeaveGroup": {"NONE", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"},
    "OffsetCommit": {
        "NONE", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS",
        "FENCED_INSTANCE_ID", "GROUP_ID_NOT_FOUND", "OFFSET_METADATA_TOO_LARGE",
        "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID",
    },
    "OffsetFetch": {"NONE", "UNSTABLE_OFFSET_COMMIT", "UNKNOWN_TOPIC_ID"},
    "TxnOffsetCommit": {
        "NONE", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
    },
    "OffsetDelete": {
        "NONE", "GROUP_ID_NOT_FOUND", "GROUP_SUBSCRIBED_TO_TOPIC", "UNKNOWN_TOPIC_OR_PARTITION",
    },
    "DeleteGroups": {"NONE", "GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP"},
    "DescribeGroups": {"NONE", "GROUP_ID_NOT_FOUND"},
    "ListGroups": {"NONE"},
    "EndTxn": {"NONE"},
}  # fmt: skip
"""What the sequences have to meet: no corner is left out by chance."""


@pytest.fixture(scope="module")
def kafka_port(tmp_path_factory) -> Iterator[Callable[[], int]]:
    """The port of an Apache Kafka with the topics, started when first asked for."""
    running: list[ApacheKafka] = []

    def port() -> int:
        if not running:
            theirs = ApacheKafka(tmp_path_factory.mktemp("ordered"), ORDERED | GROUPS)
            running.append(theirs)
            theirs.start()
            for topic in TOPICS:
                create_topic(theirs.bootstrap_servers, topic, 2)
        return running[0].port

    yield port
    for theirs in running:
        theirs.stop()


def new_pair(port: int | None) -> Pair:
    """A new broker of ours with the topics, and the Apache Kafka at `port` or none."""
    ours = BrokerOnDisk(GROUPS)
    ours.client_id = "raw"
    for topic in TOPICS:
        ours.create_topic(topic, 2)
    pair = Pair(ours, port)
    learn_topic_ids(pair)
    find_coordinators(pair, "any", "any")
    return pair


def learn_topic_ids(pair: Pair) -> None:
    """Topic ids, for requests that name topics by them."""
    message = request(K.METADATA, topics=None, allow_auto_topic_creation=False)

    not_there = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def missing(answer: Any) -> int:
        return 0 if {*TOPICS} <= {topic.name for topic in answer.topics} else not_there

    answers = pair.retry(lambda _: message, 12, missing)
    for names, answer in zip(pair.names, answers, strict=True):
        names.topics = {topic.name: topic.topic_id for topic in answer.topics}


@dataclass
class Told:
    """What was asked and answered."""

    transcripts: dict[int, Transcript] = field(default_factory=dict)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each answer was met."""

    @property
    def ended(self) -> int:
        """How many sequences ended with another leader."""
        return sum(each[-1] == OTHER_LEADER for each in self.transcripts.values())


def tell(port: int | None, count: int, known: dict[int, Transcript] | None = None) -> Told:
    """Run the sequences; of ours alone, each ends where it is `known` to end."""
    told = Told()
    with closing(new_pair(port)) as pair:
        for seed in range(count):
            name = f"g{seed}" if count == SEQUENCES else f"long-{seed}"
            told.transcripts[seed] = pair.transcript = []
            expected = (known or {}).get(seed, [""])
            pair.ends_at = len(expected) - 1 if expected[-1] == OTHER_LEADER else None
            run_sequence(Sequence(pair, name, random.Random(seed), told.met))
    return told


def run_sequence(sequence: Sequence) -> None:
    """To its end, or to where Kafka's leader was another one."""
    try:
        sequence.run()
    except OtherLeader:
        sequence.pair.transcript.append(OTHER_LEADER)
        sequence.pair.forget_parked()
    except AssertionError as difference:
        lines = "\n".join(sequence.told)
        raise AssertionError(f"{sequence.group}: {difference}\n{lines}") from difference


def tell_as_recorded() -> Told | None:
    """What ours alone tells, when it is what Apache Kafka told too; else None."""
    known = read_transcripts("groups")
    try:
        told = tell(None, SEQUENCES, known)
    except AssertionError as difference:
        warnings.warn(f"asking Apache Kafka: {difference}"[:300], stacklevel=2)
        return None
    differing = [seed for seed in told.transcripts if told.transcripts[seed] != known.get(seed)]
    if differing:
        warnings.warn(f"asking Apache Kafka: not as recorded: seeds {differing}", stacklevel=2)
    return None if differing else told


@pytest.mark.kafka
@pytest.mark.recordable
def test_random_requests_to_a_group_are_answered_alike(kafka_port, pytestconfig):
    records = pytestconfig.getoption("--record")
    told = None if records or wants_live() else tell_as_recorded()
    if told is None:
        told = tell(kafka_port(), SEQUENCES)
    missing = {(api, e) for api, errors in EXPECTED.items() for e in errors} - set(told.met)
    assert not missing
    assert told.ended < SEQUENCES // 2
    if records:
        write_transcripts("groups", told.transcripts)


@pytest.mark.kafka
@pytest.mark.chaos
def test_many_more_random_requests_to_a_group_are_answered_alike(kafka_port):
    told = tell(kafka_port(), SEQUENCES_LONG)
    assert sum(told.met.values()) > SEQUENCES_LONG * REQUESTS
    assert told.ended < SEQUENCES_LONG // 2
