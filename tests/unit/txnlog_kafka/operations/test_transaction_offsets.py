"""Offsets of a group: undecided ones, more than one record batch holds, and topics by their ids."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import LOST, refused

from txnlog_kafka.errors import AbortableError, DeadlineExceeded, FatalError, ProducerFenced
from txnlog_kafka.operations.effects import Sleep
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.offsets import (
    OFFSET_RECORDS_BYTES_MAX,
    CommittedOffset,
    commit_offsets,
    fetch_committed,
    offset_parts,
)
from txnlog_kafka.operations.transaction import (
    Transaction,
    add_to_transaction,
    commit_transaction,
    init_producer_id,
)
from txnlog_kafka.operations.transaction_offsets import (
    OffsetsCommitted,
    commit_all_offsets,
    commit_source_offsets,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import HEADER_BYTES
from txnlog_kafka.wire.topic_partition import TopicPartition

COUNT = 1_300
PROGRESS = {"progress": {TopicPartition("out", 0): CommittedOffset(1, "batch 0")}}
LONG = {
    "group": ("g" * 1_000, "many", ""),
    "topic": ("g", "t" * 249, ""),
    "metadata": ("g", "many", "naïve ✓ " * 128),
}
"""Group id, topic and metadata."""


def offsets_of(topic: str, metadata: str, count: int = COUNT) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, n): CommittedOffset(n, metadata) for n in range(count)}


def cluster_with(topic: str, version: int = 2, count: int = COUNT) -> CoreBroker:
    """The broker appends no record batch that is larger than one of ours by its estimate."""
    limit = OFFSET_RECORDS_BYTES_MAX + HEADER_BYTES
    config = {"message.max.bytes": limit, "offset.metadata.max.bytes": limit}
    cluster = CoreBroker(version, config=config)
    cluster.create_topics(**{topic: count})
    return cluster


def commit_groups(session: Any, version: int, groups: dict[str, Any], **more: Any) -> Any:
    """Commit the offsets of these groups in one transaction."""
    identity = yield from init_producer_id(session, "t", 600_000)
    transaction = Transaction("t", identity.producer_id, identity.producer_epoch, version)
    if version < 2:
        yield from add_to_transaction(session, transaction, (), groups)
    done = yield from commit_all_offsets(session, transaction, groups, may_be_gone="g", **more)
    yield from commit_transaction(session, transaction)
    return done


def commit(cluster: CoreBroker, groups: dict[str, Any], **more: Any) -> OffsetsCommitted:
    operation = commit_groups(cluster.session(), cluster.transaction_version, groups, **more)
    done: OffsetsCommitted = cluster.run(operation)
    return done


def committed(cluster: CoreBroker, group_id: str) -> dict[Any, CommittedOffset]:
    return {p: CommittedOffset(*each) for p, each in cluster.offsets(group_id).items()}


def partitions_of(message: Any) -> list[tuple[str, int]]:
    return [(t.name, p.partition_index) for t in message.topics for p in t.partitions]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("long", LONG)
def test_many_offsets_are_committed_in_one_transaction(long: str, version: int) -> None:
    group_id, topic, metadata = LONG[long]
    count = 2_000 if long == "topic" else COUNT
    cluster = cluster_with(topic, version, count)
    offsets = offsets_of(topic, metadata, count)
    done = commit(cluster, {group_id: offsets, **PROGRESS})
    assert committed(cluster, group_id) == offsets
    assert done.missing == frozenset()
    assert done.behind == {group_id: {}, "progress": {}}
    requests = cluster.requests(K.TXN_OFFSET_COMMIT)
    assert 2 < len(requests) <= 7
    sent = [p for each in requests for p in partitions_of(each) if each.group_id == group_id]
    assert sent == sorted(offsets)
    assert len(cluster.requests(K.END_TXN)) == 1
    assert cluster.run(fetch_committed(cluster.session(), group_id, partitions=offsets)) == offsets


def test_offsets_that_fit_go_out_in_one_request_a_group_with_the_reads_behind_them(
    cluster: CoreBroker,
) -> None:
    commit(cluster, {"g": offsets_of("in", "", 2), **PROGRESS})
    asked = [each for each in cluster.rounds() if K.TXN_OFFSET_COMMIT in each]
    assert asked == [[K.TXN_OFFSET_COMMIT] * 2 + [K.OFFSET_FETCH] * 2]


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_is_read_behind_its_last_part_whichever_was_sent_again(version: int) -> None:
    cluster = cluster_with("many", version)
    offsets = offsets_of("many", "m" * 1_000)
    count = len(offset_parts("g", offsets))
    for number in range(count):
        cluster.script(K.TXN_OFFSET_COMMIT, *[None] * number, refused(ErrorCode.NOT_COORDINATOR))
        cluster.asked.clear()
        commit(cluster, {"g": offsets, **PROGRESS})
        of_group = [each.api_key for each in cluster.asked if "'g'" in repr(each.message)]
        assert of_group.count(K.TXN_OFFSET_COMMIT) == count + 1
        last_sent = max(n for n, key in enumerate(of_group) if key == K.TXN_OFFSET_COMMIT)
        assert of_group[last_sent + 1 :] == [K.OFFSET_FETCH]


@pytest.mark.parametrize("fault", [LOST, refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
def test_a_part_without_success_is_sent_again_alone(fault: Any) -> None:
    cluster = cluster_with("many")
    offsets = offsets_of("many", "m" * 1_000)
    cluster.script(K.TXN_OFFSET_COMMIT, fault)
    done = commit(cluster, {"g": offsets})
    sent = [partitions_of(each) for each in cluster.requests(K.TXN_OFFSET_COMMIT)]
    assert sent.count(sent[0]) == 2
    assert committed(cluster, "g") == offsets
    assert done.missing == frozenset()


def test_partitions_of_several_parts_that_are_gone_are_all_left_out() -> None:
    cluster = cluster_with("many", count=COUNT)
    offsets = offsets_of("many", "m" * 1_000)
    gone = {TopicPartition("deleted", n): CommittedOffset(n, "m" * 1_000) for n in range(COUNT)}
    some = {TopicPartition("many", COUNT + 5): CommittedOffset(1, "")}
    done = commit(cluster, {"g": gone | offsets | some, **PROGRESS})
    assert done.missing == frozenset(gone | some)
    assert set(done.behind) == {"progress"}
    assert committed(cluster, "g") == offsets
    assert committed(cluster, "progress") == PROGRESS["progress"]


def test_a_part_of_another_group_must_not_be_gone(cluster: CoreBroker) -> None:
    gone = {"other": {TopicPartition("deleted", 0): CommittedOffset(1, "")}}
    with pytest.raises(AbortableError, match=r"group 'other' .* for deleted-0"):
        commit(cluster, {"g": offsets_of("in", "", 2), **gone})


def test_the_first_part_tells_that_the_producer_is_fenced() -> None:
    cluster = cluster_with("many")
    cluster.script(K.TXN_OFFSET_COMMIT, refused(ErrorCode.INVALID_PRODUCER_EPOCH))
    with pytest.raises(ProducerFenced):
        commit(cluster, {"g": offsets_of("many", "m" * 1_000)})
    assert not cluster.requests(K.END_TXN)


def test_all_parts_share_one_deadline() -> None:
    cluster = cluster_with("many")
    cluster.always[K.TXN_OFFSET_COMMIT] = refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    deadline = cluster.session().deadline(5_000)
    with pytest.raises(DeadlineExceeded):
        commit(cluster, {"g": offsets_of("many", "m" * 1_000)}, deadline=deadline)
    assert cluster.now_ms < 7_000


@pytest.mark.parametrize("long", LONG)
def test_a_plain_commit_goes_out_in_parts_too(long: str) -> None:
    group_id, topic, metadata = LONG[long]
    count = 2_000 if long == "topic" else COUNT
    cluster = cluster_with(topic, count=count)
    offsets = offsets_of(topic, metadata, count)
    cluster.run(commit_offsets(cluster.session(), group_id, offsets))
    assert committed(cluster, group_id) == offsets


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
)
def test_a_refusal_for_the_size_says_what_to_do(cluster: CoreBroker, code: ErrorCode) -> None:
    """Kafka 4 answers the first one, Kafka 3 the second."""
    cluster.script(K.TXN_OFFSET_COMMIT, refused(code))
    with pytest.raises(FatalError, match=code.name) as caught:
        commit(cluster, {"g": offsets_of("in", "", 2)})
    assert "raise message.max.bytes of the brokers" in caught.value.text
    assert "remove group.id" in caught.value.text
    assert "group 'g'" in caught.value.text


def test_a_broker_with_a_smaller_limit_refuses_by_name() -> None:
    cluster = CoreBroker(2, config={"message.max.bytes": 10_000})
    cluster.create_topics(many=COUNT)
    with pytest.raises(FatalError, match=r"raise message\.max\.bytes of the brokers"):
        commit(cluster, {"g": offsets_of("many", "")})


IN = TopicPartition("in", 0)
FORMER = "AAAAAAAAQACAAAAAAAAABw"
"""Id of a topic that is gone."""


def id_of(cluster: CoreBroker) -> str:
    """Id of the topic `in`, as text."""

    def operation(session: Any) -> Any:
        yield from refresh_metadata(session, ["in"])
        return session.cluster.topic_ids(["in"])["in"]

    return str(cluster.run(operation(cluster.session())))


def commit_by_id(cluster: CoreBroker, in_id: str) -> OffsetsCommitted:
    """Commit offset 7 of in-0 for the group, and the progress."""
    groups = {"g": {IN: CommittedOffset(7, "")}, **PROGRESS}
    return commit(cluster, groups, topic_ids={"in": in_id} if in_id else {})


def sent(cluster: CoreBroker) -> list[tuple[int, str]]:
    """Version and topic name of each TxnOffsetCommit, in its order; the name is "" with an id."""
    asked = (each for each in cluster.asked if each.api_key == K.TXN_OFFSET_COMMIT)
    return [(each.version, topic.name) for each in asked for topic in each.message.topics]


def test_offsets_of_a_topic_with_an_id_are_committed_by_it_and_progress_by_name(
    cluster: CoreBroker,
) -> None:
    done = commit_by_id(cluster, id_of(cluster))
    assert sent(cluster) == [(6, ""), (5, "out")]
    assert (cluster.offsets("g"), cluster.offsets("progress")) == (
        {("in", 0): (7, "")},
        {("out", 0): (1, "batch 0")},
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
    commit_by_id(cluster, id_of(cluster) if has_id else "")
    assert sent(cluster) == [(version, "in"), (version, "out")]
    assert cluster.offsets("g") == {("in", 0): (7, "")}


def test_offsets_of_a_topic_that_was_created_again_are_left_out(cluster: CoreBroker) -> None:
    done = commit_by_id(cluster, FORMER)
    assert done.missing == {IN}
    assert (cluster.offsets("g"), cluster.offsets("progress")) == ({}, {("out", 0): (1, "batch 0")})


@pytest.mark.parametrize("fault", [LOST, refused(ErrorCode.UNKNOWN_TOPIC_ID)])
def test_a_topic_whose_id_the_coordinator_does_not_know_yet_is_asked_for_again(
    cluster: CoreBroker, fault: Any
) -> None:
    cluster.script(K.TXN_OFFSET_COMMIT, fault)
    assert commit_by_id(cluster, id_of(cluster)).missing == frozenset()
    assert cluster.offsets("g") == {("in", 0): (7, "")}


def test_a_refusal_of_an_id_names_the_topic(cluster: CoreBroker) -> None:
    cluster.script(K.TXN_OFFSET_COMMIT, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(FatalError, match="grant READ on topic 'in' to this user"):
        commit_by_id(cluster, id_of(cluster))


def test_a_group_that_nobody_knows_has_no_offsets(cluster):
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


def test_undecided_offsets_are_waited_for_and_never_returned_old(cluster):
    """docs/faults.md B23."""
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


def test_a_first_offset_that_is_undecided_is_seen_when_asked_for_by_name(cluster):
    """Kafka leaves it out of a whole group's answer, found with Apache Kafka 4.3.1."""
    leave_undecided(cluster)
    assert cluster.run(fetch_committed(cluster.session(), "g")) == {}
    with pytest.raises(DeadlineExceeded, match="UNSTABLE_OFFSET_COMMIT"):
        cluster.run(fetch_committed(cluster.session(), "g", partitions=[("in", 0), ("in", 1)]))
    assert max(cluster.slept_ms) <= 1_000


def test_a_person_learns_once_what_is_waited_for(cluster):
    leave_undecided(cluster)
    session = cluster.session()
    said: list[str] = []
    session.notice = said.append
    with pytest.raises(DeadlineExceeded):
        cluster.run(fetch_committed(session, "g", partitions=[("in", 0)]))
    (line,) = said
    assert line.startswith("reading the offsets of group 'g': goes on for at most ")
    assert "UNSTABLE_OFFSET_COMMIT" in line
