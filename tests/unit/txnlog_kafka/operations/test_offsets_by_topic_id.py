"""Offsets of a transaction that name their topics by ids (TxnOffsetCommit v6, KIP-1319)."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import LOST, refused

from txnlog_kafka.errors import FatalError
from txnlog_kafka.operations.metadata import require_leaders
from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_kafka.operations.transaction import (
    Transaction,
    add_to_transaction,
    commit_transaction,
    init_producer_id,
)
from txnlog_kafka.operations.transaction_offsets import (
    OffsetsCommitted,
    commit_all_offsets,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition

IN = TopicPartition("in", 0)
FORMER = "AAAAAAAAQACAAAAAAAAABw"
"""Id of a topic that is gone."""


def commit(cluster: CoreBroker, *, is_known: bool = True, in_id: str = "") -> OffsetsCommitted:
    """Commit offset 7 of in-0 for the group, and offset 1 of out-0 as its progress."""

    def operation(session: Any) -> Any:
        if is_known:
            yield from require_leaders(session, [IN, TopicPartition("out", 0)])
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


def test_offsets_of_known_topics_are_committed_by_their_ids() -> None:
    cluster = CoreBroker(2)
    done = commit(cluster)
    assert sent(cluster) == [(6, ""), (6, "")]
    assert (cluster.offsets("g"), cluster.offsets("progress")) == (
        {("in", 0): (7, "")},
        {("out", 0): (1, "")},
    )
    assert done.missing == frozenset()
    assert done.behind == {"g": {}, "progress": {}}


@pytest.mark.parametrize(
    ("cluster", "is_known", "version"),
    [
        (CoreBroker(2), False, 5),
        (CoreBroker(2, versions_max={K.TXN_OFFSET_COMMIT: 5}), True, 5),
        (CoreBroker(1), True, 4),
    ],
    ids=["no ids", "older broker", "transaction version 1"],
)
def test_offsets_are_committed_by_name_where_ids_cannot_be(
    cluster: CoreBroker, is_known: bool, version: int
) -> None:
    commit(cluster, is_known=is_known)
    assert sent(cluster) == [(version, "in"), (version, "out")]
    assert cluster.offsets("g") == {("in", 0): (7, "")}


def test_offsets_of_a_topic_that_was_created_again_are_left_out() -> None:
    cluster = CoreBroker(2)
    done = commit(cluster, in_id=FORMER)
    assert done.missing == {IN}
    assert (cluster.offsets("g"), cluster.offsets("progress")) == ({}, {("out", 0): (1, "")})


@pytest.mark.parametrize("fault", [LOST, refused(ErrorCode.UNKNOWN_TOPIC_ID)])
def test_a_topic_whose_id_the_coordinator_does_not_know_yet_is_asked_for_again(fault: Any) -> None:
    cluster = CoreBroker(2)
    cluster.script(K.TXN_OFFSET_COMMIT, fault)
    assert commit(cluster).missing == frozenset()
    assert cluster.offsets("g") == {("in", 0): (7, "")}


def test_a_refusal_of_an_id_names_the_topic() -> None:
    cluster = CoreBroker(2)
    cluster.script(K.TXN_OFFSET_COMMIT, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(FatalError, match="grant READ on topic 'in' to this user"):
        commit(cluster)
