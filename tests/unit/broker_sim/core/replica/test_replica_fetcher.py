"""A follower: fetches, truncates what diverged, waits after errors, changes its leader."""

from __future__ import annotations

from random import Random

import pytest
from support.core.core_cluster import LAG_MS, CoreCluster, replicated
from support.core.core_network import ORDERS

from broker_sim.core.effects import PeerAnswer
from broker_sim.core.replica.fetch_session import FetchSessions
from txnlog_kafka.wire.error_codes import ErrorCode


def fetch_of(cluster: CoreCluster, follower: int):
    (asked,) = cluster.of(follower)
    return asked


def partitions_of_the_session(cluster: CoreCluster) -> list[int]:
    """Return the partitions of broker 0's session with its follower."""
    (session,) = cluster.brokers[0].parts.sessions._by_id.values()
    return [number for _, _, number in session.partitions]


@pytest.fixture
def pair() -> CoreCluster:
    made = CoreCluster(2)
    made.create(replicated(0, 1, replicas=(0, 1)))
    return made


def test_a_replica_has_the_leaders_bytes_offsets_epochs_and_high_watermark(
    pair: CoreCluster,
) -> None:
    pair.produce(0, "a", "b")
    pair.produce(0, "c")
    pair.settle()
    assert pair.batches(1) == pair.batches(0)
    assert len(pair.batches(1)) == 2
    path = f"orders-0/{'0' * 20}.log"
    contents = [broker.disk.read(path, 0, 1 << 20) for broker in pair.brokers.values()]
    assert contents[0] == contents[1] != b""
    assert [b.log().high_watermark for b in pair.brokers.values()] == [3, 3]


def test_one_request_is_under_way_for_all_partitions_of_a_leader(pair: CoreCluster) -> None:
    pair.create(replicated(0, 1, replicas=(0, 1)), replicated(1, 0, replicas=(1, 0)), name="others")
    pair.exchange(1)
    pair.advance(1000)
    pair.exchange()
    message = fetch_of(pair, 1).send.message
    assert len(partitions_of_the_session(pair)) == 2
    assert (message.max_wait_ms, message.min_bytes, message.max_bytes) == (500, 1, 10 << 20)
    assert sorted(asked.send.peer for asked in pair.sent) == [0, 1]


def test_what_diverged_is_truncated_by_epoch_and_what_is_committed_is_not(
    pair: CoreCluster,
) -> None:
    """The follower's high watermark lags behind what is committed (KIP-101)."""
    pair.produce(0, "a")
    pair.exchange(1)  # the follower has it, and the leader has not heard so
    pair.produce(0, "lost", acks=1)
    pair.kill(0)
    pair.unregister(0)
    pair.change(leader=1, isr=(1,))
    assert pair.brokers[1].log().log_end_offset == 1
    pair.produce(1, "b")
    pair.restart(0)
    pair.settle()
    assert pair.batches(0) == pair.batches(1)
    assert [epoch for _, epoch, _ in pair.batches(0)] == [0, 1]
    assert [b.log().high_watermark for b in pair.brokers.values()] == [2, 2]
    assert pair.held().isr == (1, 0)


def test_a_replica_behind_the_high_watermark_keeps_what_it_has_over_a_change_of_leader(
    pair: CoreCluster,
) -> None:
    pair.produce(0, "a")
    pair.exchange(2)
    assert pair.brokers[1].log().high_watermark == 0
    before = pair.batches(1)
    pair.change(leader=1)
    pair.change(leader=0)
    pair.exchange(1)
    assert pair.batches(1) == before
    assert len(before) == 1


def test_several_epochs_that_diverged_are_truncated_step_by_step() -> None:
    """KIP-279: the leader has epochs that the follower lacks, and the other way round."""
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, 2, replicas=(0, 1, 2)))
    cluster.produce(0, "a")
    cluster.settle()
    for leader in (1, 0, 1):  # each appends what nobody fetches
        cluster.sent.clear()
        cluster.change(leader=leader)
        cluster.sent.clear()
        cluster.produce(leader, f"of {leader}", acks=1)
    cluster.kill(1)
    cluster.change(leader=0)
    cluster.sent.clear()
    cluster.produce(0, "last", acks=1)
    cluster.restart(1)
    cluster.settle()
    assert cluster.batches(1) == cluster.batches(0)
    assert cluster.brokers[1].log().log_end_offset == cluster.brokers[0].log().log_end_offset


def test_a_lost_leader_is_asked_again_after_the_backoff(pair: CoreCluster) -> None:
    pair.lose(fetch_of(pair, 1))
    assert pair.sent == []
    pair.brokers[1].advance(999)
    assert pair.sent == []
    pair.brokers[1].advance(1)
    assert fetch_of(pair, 1).send.peer == 0


def test_a_partition_with_an_error_waits_and_the_others_go_on(pair: CoreCluster) -> None:
    pair.create(replicated(0, 1, replicas=(0, 1)), name="others")
    pair.exchange(1)
    pair.brokers[0].advance(500)
    pair.exchange(1)
    pair.change(leader=0, read=False, isr=(0,))
    asked = fetch_of(pair, 1)
    pair.deliver(asked)
    answer = pair.brokers[0].asked.answers.get(asked.key)
    if answer is None:
        pair.brokers[0].advance(500)
        answer = pair.brokers[0].asked.answers[asked.key]
    answer.responses[0].partitions[0].error_code = int(ErrorCode.UNKNOWN_LEADER_EPOCH)
    pair.answer(asked)
    again = fetch_of(pair, 1).send.message
    assert [len(topic.partitions) for topic in again.forgotten_topics_data] == [1]
    pair.exchange(1)
    assert len(partitions_of_the_session(pair)) == 1
    pair.brokers[1].advance(1000)
    pair.exchange(1)
    pair.advance(500)
    pair.exchange()
    assert len(partitions_of_the_session(pair)) == 2


def test_a_fetch_names_only_what_has_changed(pair: CoreCluster) -> None:
    pair.create(*[replicated(0, 1, replicas=(0, 1))] * 3, name="others")
    pair.settle()
    pair.exchange()
    assert fetch_of(pair, 1).send.message.topics == []
    pair.produce(0, "a", acks=1)
    pair.exchange()
    (topic,) = fetch_of(pair, 1).send.message.topics
    assert [each.fetch_offset for each in topic.partitions] == [1]


def test_a_leader_that_was_started_again_is_asked_for_all_at_once(pair: CoreCluster) -> None:
    pair.settle()
    pair.exchange()
    pair.brokers[0].parts.sessions = FetchSessions(1, Random(1))
    pair.brokers[0].advance(500)
    pair.answer(fetch_of(pair, 1))
    pair.exchange(1)
    message = fetch_of(pair, 1).send.message
    assert (message.session_id, message.session_epoch) == (0, 0)
    assert [len(topic.partitions) for topic in message.topics] == [1]
    pair.produce(0, "a")
    pair.settle()
    assert pair.batches(1) == pair.batches(0) != []


def test_what_the_leader_told_and_was_not_heard_is_told_again(pair: CoreCluster) -> None:
    """An answer that comes after a change of the leader epoch is ignored, and with it the high
    watermark."""
    pair.produce(0, "a", acks=1)
    pair.exchange(2)
    late = fetch_of(pair, 1)
    pair.deliver(late)
    pair.brokers[0].advance(500)
    assert (pair.brokers[0].log().high_watermark, pair.brokers[1].log().high_watermark) == (1, 0)
    pair.change(leader=0)
    pair.answer(late)
    pair.settle()
    assert pair.brokers[1].log().high_watermark == 1


@pytest.mark.parametrize("damage", ["crc", "cut"])
def test_damaged_bytes_are_not_appended_and_asked_for_again(pair: CoreCluster, damage: str) -> None:
    pair.produce(0, "a", acks=1)
    asked = fetch_of(pair, 1)
    pair.deliver(asked)
    answer = pair.brokers[0].asked.answers[asked.key]
    entry = answer.responses[0].partitions[0]
    whole = bytes(entry.records)
    entry.records = whole[:-1] + b"\x7f" if damage == "crc" else whole[:-1]
    pair.answer(asked)
    assert pair.brokers[1].log().log_end_offset == 0
    pair.settle()
    assert pair.batches(1) == pair.batches(0)


@pytest.mark.parametrize("leaders", [(1,), (1, 0)], ids=["another one", "the same again"])
def test_an_answer_from_before_a_change_of_leader_is_ignored(leaders: tuple[int, ...]) -> None:
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, 2))
    cluster.produce(0, "a", acks=1)
    late = fetch_of(cluster, 2)
    cluster.deliver(late)
    for leader in leaders:
        cluster.change(leader=leader)
    cluster.answer(late)
    assert cluster.brokers[2].log().log_end_offset == 0
    cluster.settle()
    assert cluster.batches(2) == cluster.batches(leaders[-1])


def test_an_answer_that_comes_twice_is_appended_once(pair: CoreCluster) -> None:
    pair.produce(0, "a", acks=1)
    asked = fetch_of(pair, 1)
    pair.deliver(asked)
    message = pair.brokers[0].asked.answers[asked.key]
    pair.answer(asked)
    pair.brokers[1].step(PeerAnswer(0, asked.send.correlation_id, message))
    assert pair.brokers[1].log().log_end_offset == 1


def test_a_replica_below_the_leaders_log_start_begins_again_there(pair: CoreCluster) -> None:
    pair.unregister(1)
    pair.change(isr=(0,))
    pair.kill(1)
    for value in "abc":
        pair.produce(0, value)
    leader = pair.brokers[0]
    leader.cause(lambda effects: leader.parts.replicas.delete_records([(leader.log(), 2)], effects))
    pair.restart(1)
    pair.settle()
    follower = pair.brokers[1].log()
    assert (follower.log_start_offset, follower.log_end_offset) == (2, 3)
    assert pair.batches(1) == [v for v in pair.batches(0) if v[0] >= 2]
    assert pair.held().isr == (0, 1)
    pair.kill(1)
    pair.restart(1)
    assert pair.brokers[1].log().log_start_offset == 2


def test_the_leaders_log_start_is_followed_and_outlives_a_crash(pair: CoreCluster) -> None:
    for value in "abc":
        pair.produce(0, value)
    pair.settle()
    leader = pair.brokers[0]
    leader.cause(lambda effects: leader.parts.replicas.delete_records([(leader.log(), 2)], effects))
    pair.settle()
    assert pair.brokers[1].log().log_start_offset == 2
    pair.kill(1)
    pair.restart(1)
    assert pair.brokers[1].log().log_start_offset == 2


def test_a_restarted_leader_does_not_lead_in_its_old_epoch(pair: CoreCluster) -> None:
    pair.kill(0)
    pair.restart(0)
    key = pair.produce(0, "a")
    assert pair.outcome(0, key).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    pair.change(leader=-1)
    pair.change(leader=0)
    key = pair.produce(0, "a", acks=1)
    assert pair.outcome(0, key).error_code == 0


# --------------------------------------------------------------------------- the publisher


def test_only_replicas_have_a_log() -> None:
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, replicas=(0, 1)))
    assert [b.parts.logs.get(*ORDERS) is not None for b in cluster.brokers.values()] == [
        True, True, False,
    ]  # fmt: skip
    assert not cluster.brokers[2].disk.list("orders-0")


def test_a_reassignment_copies_the_partition_and_deletes_the_old_replica() -> None:
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, replicas=(0, 1)))
    cluster.produce(0, "a")
    cluster.settle()
    cluster.change(replicas=(0, 1, 2), adding=(2,), removing=(1,))
    cluster.settle()
    assert cluster.batches(2) == cluster.batches(0)
    assert set(cluster.held().isr) == {0, 1, 2}
    cluster.change(replicas=(0, 2), isr=(0, 2), adding=(), removing=())
    assert cluster.brokers[1].parts.logs.get(*ORDERS) is None
    assert not cluster.brokers[1].disk.list("orders-0")
    cluster.settle()
    assert [a for a in cluster.sent if a.sender == 1 and a.key is None] == []
    cluster.kill(1)
    cluster.restart(1)
    assert not cluster.brokers[1].disk.list("orders-0")


def test_a_deleted_topic_is_not_fetched_any_more(pair: CoreCluster) -> None:
    record = {"type": "topic-deleted", "topic_id": str(pair.topics["orders"].topic_id)}
    pair.write(record)
    pair.exchange(2)
    pair.advance(2 * LAG_MS)
    assert pair.sent == []
    assert not pair.brokers[1].disk.list("orders-0")


def test_one_broker_alone_sends_nothing_and_commits_in_the_same_step() -> None:
    cluster = CoreCluster(1)
    broker = cluster.brokers[0]
    broker.create_topic("orders")
    assert broker.produce("orders", "a").error_code == 0
    assert broker.log().high_watermark == 1
    assert cluster.sent == []
    assert not [key for key in broker.timers if key[0] in ("isr-expiration", "produce")]
