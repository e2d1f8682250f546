"""Random requests to two group coordinators, ours and Apache Kafka's: the same answers.

JoinGroup and SyncGroup that one broker parks are parked by the other, and released by the same
request with the same answer. After every request the group's description and its offsets are the
same too. A sequence ends early when the leader is gone: who is the next one depends on Kafka's
random member ids. Consumer groups of KIP-848 make no such choice.

What Apache Kafka answers to the sequences of `make test` is recorded: ours is asked alone for those
of the day, and both for all of them only when what it was asked and told is not as recorded.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.brokers.apache_kafka import VERSION, ApacheKafka
from support.clients.librdkafka import create_topic
from support.core.broker_build import BrokerOnDisk, request
from support.harness.days import seeds_of_day
from support.harness.recordings import wants_live
from support.harness.transcripts import Transcript, read_transcripts, write_transcripts
from support.histories.consumer_sequence import PARTITIONS, ConsumerSequence
from support.histories.group_pair import (
    GROUPS,
    ORDERED,
    OtherLeader,
    Pair,
    find_coordinators,
)
from support.histories.group_sequence import REQUESTS, TOPICS, GroupSequence
from support.histories.migration_sequence import MIGRATION, MigrationSequence

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

K = ApiKey
SEQUENCES = 200
SEQUENCES_A_DAY = 70
SEQUENCES_LONG = 1_500
OTHER_LEADER = "other-leader"
"""Ends the transcript of a sequence in which Kafka's next leader was another one."""
CLASSIC = {
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
        "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID",
    },
    "OffsetDelete": {
        "NONE", "GROUP_ID_NOT_FOUND", "GROUP_SUBSCRIBED_TO_TOPIC", "UNKNOWN_TOPIC_OR_PARTITION",
    },
    "DeleteGroups": {"NONE", "GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP"},
    "DescribeGroups": {"NONE", "GROUP_ID_NOT_FOUND"},
    "ListGroups": {"NONE"},
    "EndTxn": {"NONE"},
}  # fmt: skip
MODERN = {
    "ConsumerGroupHeartbeat": {
        "NONE", "INVALID_REQUEST", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH",
        "UNRELEASED_INSTANCE_ID", "FENCED_INSTANCE_ID", "UNSUPPORTED_ASSIGNOR",
        "GROUP_MAX_SIZE_REACHED", "GROUP_ID_NOT_FOUND", "INVALID_REGULAR_EXPRESSION",
    },
    "ConsumerGroupDescribe": {"NONE", "GROUP_ID_NOT_FOUND"},
    "OffsetCommit": {
        "NONE", "UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH", "UNSUPPORTED_VERSION",
        "GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID",
    },
    "OffsetFetch": {
        "NONE", "UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH", "UNSTABLE_OFFSET_COMMIT",
    },
    "TxnOffsetCommit": {
        "NONE", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "UNKNOWN_TOPIC_OR_PARTITION",
    },
    "OffsetDelete": {
        "NONE", "GROUP_ID_NOT_FOUND", "GROUP_SUBSCRIBED_TO_TOPIC", "UNKNOWN_TOPIC_OR_PARTITION",
    },
    "DeleteGroups": {"NONE", "GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP"},
    "DescribeGroups": {"NONE", "GROUP_ID_NOT_FOUND"},
    "JoinGroup": {"MEMBER_ID_REQUIRED", "INCONSISTENT_GROUP_PROTOCOL"},
    "Heartbeat": {"UNKNOWN_MEMBER_ID"},
    "ListGroups": {"NONE"},
    "EndTxn": {"NONE"},
}  # fmt: skip
MIGRATING = {
    "ConsumerGroupHeartbeat": {
        "NONE", "FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND",
        "GROUP_MAX_SIZE_REACHED", "UNKNOWN_MEMBER_ID", "UNRELEASED_INSTANCE_ID",
    },
    "JoinGroup": {
        "NONE", "FENCED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED", "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_SESSION_TIMEOUT", "MEMBER_ID_REQUIRED", "UNKNOWN_MEMBER_ID", "parked",
    },
    "SyncGroup": {
        "NONE", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION", "INCONSISTENT_GROUP_PROTOCOL",
        "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "parked",
    },
    "Heartbeat": {
        "NONE", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS",
        "UNKNOWN_MEMBER_ID",
    },
    "LeaveGroup": {"NONE", "FENCED_INSTANCE_ID", "UNKNOWN_MEMBER_ID"},
    "OffsetCommit": {
        "NONE", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID", "UNSUPPORTED_VERSION",
    },
    "OffsetFetch": {"NONE", "STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"},
    "OffsetDelete": {"NONE", "GROUP_SUBSCRIBED_TO_TOPIC"},
    "TxnOffsetCommit": {"NONE", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"},
    "DeleteGroups": {"GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP"},
}  # fmt: skip
VERSION_MODERN = max(VERSION, "4.4.0")
"""Kafka 4.4 bumps the epoch of a consumer group in other places than the versions before."""


@dataclass(frozen=True)
class Kind:
    """Sequences of one kind, and the brokers that they are sent to."""

    sequence: type[GroupSequence]
    version: str
    """Version of Apache Kafka."""
    expected: dict[str, set[str]]
    """Answers that the sequences must meet, by request, so that chance leaves out no corner."""
    config: tuple[tuple[str, str], ...] = tuple(GROUPS.items())


def migrating(policy: str) -> Kind:
    """Groups that may change their protocol as this policy says."""
    config = GROUPS | MIGRATION | {"group.consumer.migration.policy": policy}
    return Kind(MigrationSequence, VERSION_MODERN, MIGRATING, tuple(config.items()))


KINDS = {
    "groups": Kind(GroupSequence, VERSION, CLASSIC),
    "consumer-groups": Kind(ConsumerSequence, VERSION_MODERN, MODERN),
    "migration-upgrade": migrating("upgrade"),
    "migration-downgrade": migrating("downgrade"),
    "migration-bidirectional": migrating("bidirectional"),
}
"""Kinds of sequences by the name of their recording."""


@pytest.fixture(scope="module")
def kafka_port(tmp_path_factory) -> Iterator[Callable[[str], int]]:
    """The port of an Apache Kafka with the topics, by the kind of sequence; started when first
    asked for."""
    running: dict[tuple[str, tuple[tuple[str, str], ...]], ApacheKafka] = {}

    def port(name: str) -> int:
        kind = KINDS[name]
        key = kind.version, kind.config
        if key not in running:
            folder = tmp_path_factory.mktemp("ordered")
            config = ORDERED | dict(kind.config)
            running[key] = theirs = ApacheKafka(folder, config, version=kind.version)
            theirs.start()
            for topic in TOPICS:
                create_topic(theirs.bootstrap_servers, topic, PARTITIONS[topic])
        return running[key].port

    yield port
    for theirs in running.values():
        theirs.stop()


def new_pair(kind: Kind, port: int | None) -> Pair:
    """A new broker of ours with the topics, and the Apache Kafka at `port` or none."""
    ours = BrokerOnDisk(dict(kind.config))
    ours.client_id = "raw"
    for topic in TOPICS:
        ours.create_topic(topic, PARTITIONS[topic])
    pair = Pair(ours, port)
    find_coordinators(pair, "any", "any")
    learn_topic_ids(pair)
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
    """Requests and answers of all sequences."""

    transcripts: dict[int, Transcript] = field(default_factory=dict)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of times each answer was met."""

    @property
    def ended(self) -> int:
        """Return the number of sequences that ended because Apache Kafka chose another leader."""
        return sum(each[-1] == OTHER_LEADER for each in self.transcripts.values())


def tell(
    kind: str,
    port: int | None,
    seeds: Iterable[int],
    known: dict[int, Transcript] | None = None,
    *,
    prefix: str = "",
) -> Told:
    """Run the sequences; of ours alone, each ends where it is `known` to end.

    The names of the groups begin with the kind and `prefix`.
    """
    told = Told()
    with closing(new_pair(KINDS[kind], port)) as pair:
        for seed in seeds:
            name = f"{kind[0]}{prefix}{seed}"
            told.transcripts[seed] = pair.transcript = []
            expected = (known or {}).get(seed, [""])
            pair.ends_at = len(expected) - 1 if expected[-1] == OTHER_LEADER else None
            run_sequence(KINDS[kind].sequence(pair, name, random.Random(seed), told.met))
    return told


def run_sequence(sequence: GroupSequence) -> None:
    """Run the sequence to its end, or to the point where Kafka chose another leader."""
    try:
        sequence.run()
    except OtherLeader:
        sequence.pair.transcript.append(OTHER_LEADER)
        sequence.pair.forget_parked()
    except AssertionError as difference:
        lines = "\n".join(sequence.told)
        raise AssertionError(f"{sequence.group}: {difference}\n{lines}") from difference


def is_as_recorded(kind: str) -> bool:
    """Return True if broker_sim alone gives the recorded answers to the sequences of the day."""
    known = read_transcripts(kind, KINDS[kind].version)
    try:
        told = tell(kind, None, seeds_of_day(SEQUENCES_A_DAY, SEQUENCES), known)
    except AssertionError as difference:
        warnings.warn(f"asking Apache Kafka: {difference}"[:300], stacklevel=2)
        return False
    differing = [seed for seed in told.transcripts if told.transcripts[seed] != known.get(seed)]
    if differing:
        warnings.warn(f"asking Apache Kafka: not as recorded: seeds {differing}", stacklevel=2)
    return not differing


@pytest.mark.kafka
@pytest.mark.recordable
@pytest.mark.parametrize("kind", KINDS)
def test_random_requests_to_a_group_are_answered_alike(kafka_port, pytestconfig, kind):
    records = pytestconfig.getoption("--record")
    if not (records or wants_live()) and is_as_recorded(kind):
        return
    told = tell(kind, kafka_port(kind), range(SEQUENCES))
    wanted = {(api, error) for api, errors in KINDS[kind].expected.items() for error in errors}
    assert wanted <= {*told.met}
    assert told.ended < SEQUENCES // 2
    if records:
        write_transcripts(kind, told.transcripts, KINDS[kind].version)


@pytest.mark.kafka
@pytest.mark.chaos
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_random_requests_to_a_group_are_answered_alike(kafka_port, kind):
    told = tell(kind, kafka_port(kind), range(SEQUENCES_LONG), prefix="-long-")
    assert sum(told.met.values()) > SEQUENCES_LONG * REQUESTS
    assert told.ended < SEQUENCES_LONG // 2
