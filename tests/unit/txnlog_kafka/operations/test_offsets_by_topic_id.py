"""Offsets of a transaction that name their topics by ids (TxnOffsetCommit v6, KIP-1319)."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import LOST, refused

from txnlog_kafka.errors import FatalError
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_kafka.operations.transaction import (
    Transaction,
    add_to_transaction,
    commit_transaction,
    init_producer_id,
)
from txnlog_kafka.operations.transaction_offsets import OffsetsCommitted, commit_all_offsets
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition

IN = TopicPartition("in", 0)
FORMER = "AAAAAAAAQACAAAAAAAAABw"
"""Id of a topic that is gone."""


def id_of(cluster: CoreBroker) -> str:
    """Id of the topic `in`, as text."""

    def operation(session: Any) -> Any:
        yield from refresh_metadata(session, ["in"])
        return session.cluster.topic_ids(["in"])["in"]

    return str(cluster.run(operation(cluster.session())))


def commit(cluster: CoreBroker, in_id: str) -> OffsetsCommitted:
    """Commit offset 7 of in-0 for the group, and offset 1 of out-0 as its progress."""

    def operation(session: Any) -> Any:
        version = cluster.transaction_version
        identity = yield from init_producer_id(session, "t", 600_000)
        transaction = Transaction("t", identity.producer_id, identity.producer_epoch, version)
        groups = {
            "g": {IN: CommittedOffset(7, "")},
            "progress": {TopicPartition("out", 0): CommittedOffset(1, "")},
        }
        if version < 2:
            yield from add_to_transaction(session, transaction, (), groups)
        done = yield from commit_all_offsets(
            session, transaction, groups, may_be_gone="g", topic_ids={"in": in_id} if in_id else {}
        )
        yield from commit_transaction(session, transaction)
        return done

    done: OffsetsCommitted = cluster.run(operation(cluster.session()))
    return done


def sent(cluster: CoreBroker) -> list[tuple[int, str]]:
    """Version and topic name of each TxnOffsetCommit, in its order; the name is "" with an id."""
    asked = (each for each in cluster.asked if each.api_key == K.TXN_OFFSET_COMMIT)
    return [(each.version, topic.name) for each in asked for topic in each.message.topics]


def test_offsets_of_a_topic_with_an_id_are_committed_by_it_and_progress_by_name() -> None:
    cluster = CoreBroker(2)
    done = commit(cluster, id_of(cluster))
    assert sent(cluster) == [(6, ""), (5, "out")]
    assert (cluster.offsets("g"), cluster.offsets("progress")) == (
        {("in", 0): (7, "")},
        {("out", 0): (1, "")},
    )
    assert done.missing == frozenset()
    assert done.behind == {"g": {}, "progress": {}}


@pytest.mark.parametrize(
    ("cluster", "has_id", "version"),
    [
        (CoreBroker(2), False, 5),
        (CoreBroker(2, versions_max={K.TXN_OFFSET_COMMIT: 5}), True, 5),
        (CoreBroker(1), True, 4),
    ],
    ids=["no id", "older broker", "transaction version 1"],
)
def test_offsets_are_committed_by_name_where_ids_cannot_be(
    cluster: CoreBroker, has_id: bool, version: int
) -> None:
    commit(cluster, id_of(cluster) if has_id else "")
    assert sent(cluster) == [(version, "in"), (version, "out")]
    assert cluster.offsets("g") == {("in", 0): (7, "")}


def test_offsets_of_a_topic_that_was_created_again_are_left_out() -> None:
    cluster = CoreBroker(2)
    done = commit(cluster, FORMER)
    assert done.missing == {IN}
    assert (cluster.offsets("g"), cluster.offsets("progress")) == ({}, {("out", 0): (1, "")})


@pytest.mark.parametrize("fault", [LOST, refused(ErrorCode.UNKNOWN_TOPIC_ID)])
def test_a_topic_whose_id_the_coordinator_does_not_know_yet_is_asked_for_again(fault: Any) -> None:
    cluster = CoreBroker(2)
    cluster.script(K.TXN_OFFSET_COMMIT, fault)
    assert commit(cluster, id_of(cluster)).missing == frozenset()
    assert cluster.offsets("g") == {("in", 0): (7, "")}


def test_a_refusal_of_an_id_names_the_topic() -> None:
    cluster = CoreBroker(2)
    cluster.script(K.TXN_OFFSET_COMMIT, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(FatalError, match="grant READ on topic 'in' to this user"):
        commit(cluster, id_of(cluster))
