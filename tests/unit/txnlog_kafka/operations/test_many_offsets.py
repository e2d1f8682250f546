"""Offsets of a group that are more than one record batch of `__consumer_offsets` can hold."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import LOST, refused

from txnlog_kafka.errors import AbortableError, DeadlineExceeded, FatalError, ProducerFenced
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
from txnlog_kafka.operations.transaction_offsets import OffsetsCommitted, commit_all_offsets
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


def test_offsets_that_fit_go_out_in_one_request_a_group_with_the_reads_behind_them() -> None:
    cluster = CoreBroker(2)
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


def test_a_part_of_another_group_must_not_be_gone() -> None:
    cluster = CoreBroker(2)
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
def test_a_refusal_for_the_size_says_what_to_do(code: ErrorCode) -> None:
    """Kafka 4 answers the first one, Kafka 3 the second."""
    cluster = CoreBroker(2)
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
