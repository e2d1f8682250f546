"""Committed offsets of a group, and offsets that a transaction has not decided yet."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker

from txnlog_kafka.errors import DeadlineExceeded
from txnlog_kafka.operations.effects import Sleep
from txnlog_kafka.operations.offsets import CommittedOffset, fetch_committed
from txnlog_kafka.operations.transaction import Transaction, commit_transaction, init_producer_id
from txnlog_kafka.operations.transaction_offsets import commit_source_offsets
from txnlog_kafka.wire.topic_partition import TopicPartition


def test_a_group_that_nobody_knows_has_no_offsets():
    cluster = CoreBroker(2)
    assert cluster.run(fetch_committed(cluster.session(), "nobody")) == {}


def leave_undecided(cluster: CoreBroker) -> Transaction:
    """An open transaction that is to commit 9 for the group."""

    def operation(session):
        identity = yield from init_producer_id(session, "t", 600_000)
        transaction = Transaction("t", identity.producer_id, identity.producer_epoch, 2)
        offsets = {TopicPartition("in", 0): CommittedOffset(9, "")}
        yield from commit_source_offsets(session, transaction, "g", offsets, {})
        return transaction

    return cluster.run(operation(cluster.session()))


def test_undecided_offsets_are_waited_for_and_never_returned_old():
    """docs/faults.md B23."""
    cluster = CoreBroker(2)
    cluster.commit_offsets("g", {("in", 0): (5, "")})
    transaction = leave_undecided(cluster)
    original = cluster.perform

    def perform(ask):
        if isinstance(ask, Sleep) and len(cluster.slept_ms) == 3:
            cluster.run(commit_transaction(cluster.session(), transaction))
        return original(ask)

    cluster.perform = perform
    found = cluster.run(fetch_committed(cluster.session(), "g"))
    assert found["in", 0].committed_offset == 9


def test_a_first_offset_that_is_undecided_is_seen_when_asked_for_by_name():
    """Kafka leaves it out of a whole group's answer, found with Apache Kafka 4.3.1."""
    cluster = CoreBroker(2)
    leave_undecided(cluster)
    assert cluster.run(fetch_committed(cluster.session(), "g")) == {}
    with pytest.raises(DeadlineExceeded, match="UNSTABLE_OFFSET_COMMIT"):
        cluster.run(fetch_committed(cluster.session(), "g", partitions=[("in", 0), ("in", 1)]))
    assert max(cluster.slept_ms) <= 1_000


def test_a_person_learns_once_what_is_waited_for():
    cluster = CoreBroker(2)
    leave_undecided(cluster)
    session = cluster.session()
    said: list[str] = []
    session.notice = said.append
    with pytest.raises(DeadlineExceeded):
        cluster.run(fetch_committed(session, "g", partitions=[("in", 0)]))
    (line,) = said
    assert line.startswith("reading the offsets of group 'g': goes on for at most ")
    assert "UNSTABLE_OFFSET_COMMIT" in line
