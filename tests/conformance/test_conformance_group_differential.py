"""Random requests to two group coordinators, ours and Apache Kafka's: the same answers.

JoinGroup and SyncGroup that one broker parks are parked by the other, and released by the same
request with the same answer. After every request the group's description and its offsets are the
same too. A sequence ends early when the leader is gone: who is the next one depends on Kafka's
random member ids.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from support.apache_kafka import ApacheKafka
from support.availability import check_available
from support.broker_build import BrokerOnDisk, request
from support.group_pair import GROUPS, ORDERED, OtherLeader, Pair, find_coordinators
from support.group_sequence import REQUESTS, TOPICS, Sequence
from support.librdkafka import create_topic

from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import ApiKey

K = ApiKey
SEQUENCES = 200
SEQUENCES_LONG = 1_500
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
def pair(tmp_path_factory):
    """Both brokers with the topics."""
    check_available("apache_kafka")
    ours = BrokerOnDisk(GROUPS)
    ours.client_id = "raw"
    with ApacheKafka(tmp_path_factory.mktemp("ordered"), ORDERED | GROUPS) as theirs:
        pair = Pair(ours, theirs.port)
        for topic in TOPICS:
            ours.create_topic(topic, 2)
            create_topic(theirs.bootstrap_servers, topic, 2)
        learn_topic_ids(pair)
        find_coordinators(pair, "any", "any")
        yield pair
        pair.close()


def learn_topic_ids(pair: Pair) -> None:
    """Topic ids, for requests that name topics by them."""
    message = request(K.METADATA, topics=None, allow_auto_topic_creation=False)

    not_there = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def missing(answer: Any) -> int:
        return 0 if {*TOPICS} <= {topic.name for topic in answer.topics} else not_there

    answers = pair.retry(lambda _: message, 12, missing)
    for names, answer in zip(pair.names, answers, strict=True):
        names.topics = {topic.name: topic.topic_id for topic in answer.topics}


def run_sequences(pair: Pair, unique, count: int) -> tuple[Counter, int]:
    """How often each answer was met, and how many sequences ended with another leader."""
    met: Counter[tuple[str, str]] = Counter()
    ended = 0
    for seed in range(count):
        sequence = Sequence(pair, unique(f"g{seed}"), random.Random(seed), met)
        try:
            sequence.run()
        except OtherLeader:
            ended += 1
            pair.forget_parked()
        except AssertionError as difference:
            told = "\n".join(sequence.told)
            raise AssertionError(f"seed {seed}: {difference}\n{told}") from difference
    return met, ended


@pytest.mark.kafka
def test_random_requests_to_a_group_are_answered_alike(pair, unique):
    met, ended = run_sequences(pair, unique, SEQUENCES)
    missing = {(api, e) for api, errors in EXPECTED.items() for e in errors} - set(met)
    assert not missing
    assert ended < SEQUENCES // 2


@pytest.mark.kafka
@pytest.mark.chaos
def test_many_more_random_requests_to_a_group_are_answered_alike(pair, unique):
    met, ended = run_sequences(pair, unique, SEQUENCES_LONG)
    assert sum(met.values()) > SEQUENCES_LONG * REQUESTS
    assert ended < SEQUENCES_LONG // 2
