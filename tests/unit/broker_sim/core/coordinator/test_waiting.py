"""Answers of the coordinators that wait until their records are committed.

The high watermark of a partition is held back by hand here, as a follower that is behind would.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.core.broker_build import offset_commit, produce_request, request
from support.core.coordinators import World
from support.core.log_build import build_batch

from broker_sim.core.effects import Effects
from broker_sim.core.replica.partition import Partition
from broker_sim.core.transaction import state_manager
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC as OFFSETS
from txnlog_kafka.wire.topic_partition import TRANSACTION_STATE_TOPIC as TRANSACTIONS
from txnlog_kafka.wire.topic_partition import TopicPartition

Asked = tuple[Any, int]


class Held:
    """A broker with a producer, "t", and partitions whose high watermark waits for `release`."""

    def __init__(self) -> None:
        self.broker = World({"group.initial.rebalance.delay.ms": 0})
        self.parts = self.broker.parts
        given = self.broker.ask(*self.init())
        self.ids = {
            "transactional_id": "t",
            "producer_id": given.producer_id,
            "producer_epoch": given.producer_epoch,
        }

    def init(self, name: str = "t") -> Asked:
        return request(K.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000), 4

    def add_offsets(self) -> Asked:
        return request(K.ADD_OFFSETS_TO_TXN, group_id="g", **self.ids), 3

    def add_partitions(self) -> Asked:
        ids = {f"v3_and_below_{name}": value for name, value in self.ids.items()}
        topics = [{"name": "data", "partitions": [0]}]
        return request(K.ADD_PARTITIONS_TO_TXN, **ids, v3_and_below_topics=topics), 3

    def produce(self) -> Asked:
        ids = (self.ids["producer_id"], self.ids["producer_epoch"], 0)
        batch = build_batch("v", producer=ids, transactional=True)
        return produce_request({("data", 0): batch}, -1, "t"), 12

    def end(self) -> Asked:
        self.broker.ask(*self.produce())
        return request(K.END_TXN, committed=True, **self.ids), 5

    def commit_offset(self, group_id: str = "g") -> Asked:
        return offset_commit(7, "data", group_id=group_id), 8

    def commit_pending(self) -> Asked:
        topics = [{"name": "data", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
        return request(K.TXN_OFFSET_COMMIT, group_id="g", topics=topics, **self.ids), 5

    def delete_offset(self) -> Asked:
        self.broker.ask(*self.commit_offset())
        topics = [{"name": "data", "partitions": [{"partition_index": 0}]}]
        return request(K.OFFSET_DELETE, group_id="g", topics=topics), 0

    def delete_groups(self) -> Asked:
        self.broker.ask(*self.commit_offset())
        self.broker.ask(*self.commit_offset("h"))
        return request(K.DELETE_GROUPS, groups_names=["g", "no", "h"]), 2

    def join(self, group_id: str = "new") -> Asked:
        return request(
            K.JOIN_GROUP, group_id=group_id, session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
            protocol_type="consumer", protocols=[{"name": "range"}],
        ), 9  # fmt: skip

    def write_marker(self) -> Asked:
        self.broker.ask(*self.commit_pending())
        marker = {
            "producer_id": self.ids["producer_id"],
            "producer_epoch": self.ids["producer_epoch"],
            "transaction_result": True,
            "topics": [{"name": OFFSETS, "partition_indexes": [0]}],
        }
        return request(K.WRITE_TXN_MARKERS, markers=[marker]), 1

    # ------------------------------------------------------------ the high watermark

    def hold(self, topic: str) -> None:
        self.broker.log(topic).single_replica = False

    def release(self, topic: str) -> None:
        end = self.broker.log(topic).log_end_offset
        name = TopicPartition(topic, 0)
        self.broker.cause(
            lambda effects: self.parts.replicas.advance_high_watermark(name, end, effects)
        )

    def unload(self, topic: str) -> None:
        owner = self.parts.transactions if topic == TRANSACTIONS else self.parts.groups
        self.broker.cause(lambda effects: owner.unload(0, effects))

    def answers(self, key: tuple[int, int]) -> int:
        """Return the number of answers to this request."""
        return sum(
            (response.connection_id, response.correlation_id) == key
            for step in self.broker.steps
            for response in step.responses
        )


WAITING = {
    "init": TRANSACTIONS,
    "add_partitions": TRANSACTIONS,
    "add_offsets": TRANSACTIONS,
    "produce": TRANSACTIONS,
    "end": TRANSACTIONS,
    "commit_offset": OFFSETS,
    "commit_pending": OFFSETS,
    "delete_offset": OFFSETS,
    "delete_groups": OFFSETS,
    "join": OFFSETS,
    "write_marker": OFFSETS,
}
"""Requests, and the partition whose high watermark they wait for."""


def error_codes(message: Any) -> set[E]:
    """Return all error codes in an answer."""
    return {E(int(code)) for code in re.findall(r"error_code=(-?\d+)", repr(message))}


@pytest.mark.parametrize(("asks", "topic"), WAITING.items())
def test_an_answer_waits_for_the_high_watermark_and_comes_once(asks: str, topic: str) -> None:
    held = Held()
    message, version = getattr(held, asks)()
    held.hold(topic)
    key = held.broker.send(message, version)
    assert held.answers(key) == 0
    held.release(topic)
    while held.answers(key) == 0 and held.broker.timers:
        # JoinGroup waits for the group's delay, too; Produce and EndTxn have nothing else.
        held.broker.advance(1)
        held.release(topic)
    held.release(topic)
    assert held.answers(key) == 1
    allowed = {E.NONE, E.GROUP_ID_NOT_FOUND if asks == "delete_groups" else E.MEMBER_ID_REQUIRED}
    assert error_codes(held.broker.asked.answers[key]) <= allowed


def test_a_heartbeat_without_a_record_waits_for_the_records_before_it() -> None:
    held = Held()
    fields = {"group_id": "new", "member_id": "m", "rebalance_timeout_ms": 9}
    fields |= {"subscribed_topic_names": ["data"], "topic_partitions": []}
    held.hold(OFFSETS)
    joins = request(K.CONSUMER_GROUP_HEARTBEAT, member_epoch=0, **fields)
    joined, again = held.broker.send(joins, 1), held.broker.send(joins, 1)
    assert (held.answers(joined), held.answers(again)) == (0, 0)
    held.release(OFFSETS)
    told = [held.broker.asked.answers[key] for key in (joined, again)]
    assert [(each.error_code, each.member_epoch) for each in told] == [(0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("asks", "topic"), [item for item in WAITING.items() if item[0] != "write_marker"]
)
def test_an_answer_that_waits_is_not_coordinator_when_the_shard_is_unloaded(
    asks: str, topic: str
) -> None:
    held = Held()
    message, version = getattr(held, asks)()
    held.hold(topic)
    key = held.broker.send(message, version)
    held.unload(topic)
    assert held.answers(key) == 1
    told = error_codes(held.broker.asked.answers[key]) - {E.NONE, E.GROUP_ID_NOT_FOUND}
    assert told == {E.NOT_ENOUGH_REPLICAS if asks == "produce" else E.NOT_COORDINATOR}
    held.release(topic)
    assert held.answers(key) == 1


def test_what_waits_is_not_seen_and_blocks_the_id() -> None:
    held = Held()
    held.hold(TRANSACTIONS)
    key = held.broker.send(*held.add_partitions())
    assert held.parts.transactions.describe("t").state == "Empty"
    assert held.broker.ask(*held.init()).error_code == E.CONCURRENT_TRANSACTIONS
    held.release(TRANSACTIONS)
    assert held.answers(key) == 1
    assert held.parts.transactions.describe("t").state == "Ongoing"


def test_two_that_create_one_id_at_once_get_one_answer_each() -> None:
    held = Held()
    held.hold(TRANSACTIONS)
    first = held.broker.send(*held.init("new"))
    assert held.broker.ask(*held.init("new")).error_code == E.CONCURRENT_TRANSACTIONS
    held.release(TRANSACTIONS)
    assert held.broker.asked.answers[first].error_code == E.NONE


def test_no_marker_is_written_before_the_decision_is_committed() -> None:
    held = Held()
    message, version = held.end()
    held.hold(TRANSACTIONS)
    held.broker.send(message, version)
    log = held.broker.log("data")
    assert log.log_end_offset == 1
    held.release(TRANSACTIONS)
    assert log.log_end_offset == 2
    assert held.parts.transactions.describe("t").state == "PrepareCommit"
    held.release(TRANSACTIONS)
    assert held.parts.transactions.describe("t").state == "CompleteCommit"


def test_a_transaction_is_complete_when_its_markers_are_committed() -> None:
    held = Held()
    message, version = held.end()
    held.hold("data")
    assert held.broker.ask(message, version).error_code == 0
    held.broker.advance(1_000)  # what is on its way is not sent again
    log = held.broker.log("data")
    assert log.log_end_offset == 2
    assert held.parts.transactions.describe("t").state == "PrepareCommit"
    held.release("data")
    assert held.parts.transactions.describe("t").state == "CompleteCommit"


def test_an_offset_is_read_when_its_commit_is_committed() -> None:
    held = Held()
    held.hold(OFFSETS)
    held.broker.send(*held.commit_offset())
    assert held.parts.groups.offset_fetch("g", None, require_stable=True).offsets == ()
    held.release(OFFSETS)
    (found,) = held.parts.groups.offset_fetch("g", None, require_stable=True).offsets
    assert found.committed_offset == 7


def test_a_group_that_got_a_member_outlives_the_tombstone_that_waited() -> None:
    held = Held()
    held.broker.ask(*held.commit_offset())
    held.hold(OFFSETS)
    deleting = held.broker.send(request(K.DELETE_GROUPS, groups_names=["g"]), 2)
    joining = held.broker.send(held.join("g")[0], 3)
    held.broker.advance(1)
    assert held.answers(joining) == 1
    held.release(OFFSETS)
    assert held.answers(deleting) == 1
    assert held.parts.groups.describe_group("g").members


@pytest.mark.parametrize("asks", ["init", "add_partitions", "end"])
def test_a_change_is_cancelled_when_the_handler_raises_before_it_is_appended(
    asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    message, version = getattr(held, asks)()

    def planted(*_: object) -> bytes:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(state_manager, "encode_value", planted)
        patched.setattr("broker_sim.core.transaction.ending.flush_logs", lambda *_: None)
        held.broker.send(message, version, connection_id=9)
    assert "planted" in held.broker.asked.closed[9]
    assert error_codes(held.broker.ask(message, version)) == {E.NONE}


def test_who_waits_for_a_partition_is_told_when_it_is_deleted() -> None:
    held, told = Held(), []
    partition = held.broker.partition("data")
    partition.when_committed(5, lambda error, _: told.append(error), Effects(0, 0))
    assert told == []
    held.broker.delete_topic("data")
    assert told == [E.UNKNOWN_TOPIC_OR_PARTITION]


def test_who_waits_is_told_in_the_order_of_the_appends() -> None:
    held = Held()
    log = held.broker.log("data")
    log.single_replica = False
    partition, told, effects = Partition(log), [], Effects(0, 0)

    def first(_error: E, effects: Effects) -> None:
        told.append("first")
        partition.when_committed(2, lambda *_: told.append("third"), effects)

    partition.when_committed(0, first, effects)
    partition.when_committed(1, lambda *_: told.append("second"), effects)
    for _ in range(3):
        held.broker.produce("data", "v")
    log.advance_high_watermark(3, effects)
    partition.release(effects)
    assert told == ["first", "second", "third"]


def test_a_batch_that_waited_is_not_appended_to_a_topic_that_went_meanwhile() -> None:
    held = Held()
    held.hold(TRANSACTIONS)
    key = held.broker.send(*held.produce())
    held.broker.delete_topic("data")
    held.broker.create_topic("data", 1)
    held.release(TRANSACTIONS)
    assert error_codes(held.broker.asked.answers[key]) == {E.UNKNOWN_TOPIC_OR_PARTITION}
    assert held.broker.log("data").log_end_offset == 0
