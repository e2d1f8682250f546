"""Coordinators load in what their live ids take, however long their logs have been written."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, offset_commit, request
from support.core.counting_disk import CountingDisk

from broker_sim.core.effects import Effects
from broker_sim.core.group.requests import OffsetCommit, OffsetToCommit
from txnlog_kafka.wire.messages import ApiKey

SEGMENT_BYTES = 64 << 10
CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.segment.bytes": SEGMENT_BYTES,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": SEGMENT_BYTES,
    "log.cleaner.delete.retention.ms": 0,
    "flush.on.commit": "false",
}
IDS = [f"id-{index}" for index in range(10)]
UPDATES = 20_000
STEP = 500
CLEANED_MS = 60_000


@pytest.fixture
def broker() -> BrokerOnDisk:
    broker = BrokerOnDisk(CONFIG, disk=CountingDisk())
    broker.find_coordinators()
    return broker


def drive(broker: BrokerOnDisk, act, count: int = UPDATES) -> None:
    """`act(index, effects)` so often, several to a step."""
    for start in range(0, count, STEP):
        some = range(start, min(start + STEP, count))
        broker.cause(lambda effects, some=some: [act(index, effects) for index in some])
        broker.operations.clear()


def log_bytes(broker: BrokerOnDisk, folder: str) -> int:
    names = [n for n in broker.disk.list(folder) if n.endswith(".log")]
    return sum(broker.disk.size_bytes(f"{folder}/{n}") or 0 for n in names)


def loaded_bytes(broker: BrokerOnDisk, folder: str, how: str) -> int:
    """Restart the broker; return the bytes that the start reads of the folder."""
    if how == "stop":
        broker.stop()
    broker.disk.count()
    broker.start()
    return broker.disk.count(begins=f"{folder}/")


def transactions(broker: BrokerOnDisk) -> list[tuple]:
    message = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=IDS)
    return [
        (t.transactional_id, t.error_code, t.producer_id, t.producer_epoch, t.transaction_state)
        for t in broker.ask(message, 0).transaction_states
    ]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_transaction_log_is_as_large_as_its_live_ids(broker, how):
    folder = "__transaction_state-0"

    def init(index: int, effects: Effects) -> None:
        answers: list = []
        broker.parts.transactions.init_producer_id(
            IDS[index % len(IDS)], 60_000, lambda result, _: answers.append(result.error), effects
        )
        assert answers == [0]

    drive(broker, init)
    written = log_bytes(broker, folder)
    assert written > 20 * SEGMENT_BYTES
    before = transactions(broker)
    assert {error for _, error, *_ in before} == {0}
    broker.advance(CLEANED_MS)
    assert loaded_bytes(broker, folder, how) < 5 * SEGMENT_BYTES
    assert transactions(broker) == before


def committed(broker: BrokerOnDisk) -> dict[str, list[tuple]]:
    asked = [{"group_id": group, "topics": None} for group in IDS]
    message = request(ApiKey.OFFSET_FETCH, require_stable=True, groups=asked)
    return {
        group.group_id: [
            (p.partition_index, p.committed_offset, p.metadata)
            for topic in group.topics
            for p in topic.partitions
        ]
        for group in broker.ask(message, 8).groups
    }


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_offsets_log_is_as_large_as_its_live_groups(broker, how):
    folder = "__consumer_offsets-0"
    broker.create_topic("orders", 1)
    groups = broker.parts.groups

    def commit(index: int, effects: Effects) -> None:
        offset = OffsetToCommit("orders", 0, index, -1, f"batch {index}")
        wanted = OffsetCommit(group_id=IDS[index % len(IDS)], offsets=(offset,))
        answers: list = []
        groups.offset_commit(wanted, lambda errors, _: answers.append(errors), effects)
        assert answers == [{("orders", 0): 0}]

    drive(broker, commit)
    assert log_bytes(broker, folder) > 20 * SEGMENT_BYTES
    before = committed(broker)
    assert before["id-9"] == [(0, UPDATES - 1, f"batch {UPDATES - 1}")]
    broker.advance(CLEANED_MS)
    assert loaded_bytes(broker, folder, how) < 5 * SEGMENT_BYTES
    assert committed(broker) == before


def test_offsets_of_transactions_are_the_same_after_compaction(broker):
    """Committed, aborted and plain commits of one group, in turn, over several segments."""
    broker.create_topic("orders", 4)
    producer = broker.producer()
    assert producer.init() == "NONE"
    for index in range(400):
        if index % 3:
            assert producer.add_offsets("id-0") == "NONE"
            place = ("orders", index % 4, index)
            told = producer.commit_offset("id-0", *place, metadata="t" * 100, version=3)
            assert told == "NONE"
            assert producer.end(commit=index % 3 == 1, version=3) == "NONE"
        else:
            plain = offset_commit(index, "orders", index % 4, group_id="id-0")
            assert broker.ask(plain, 8).topics[0].partitions[0].error_code == 0
    before, bytes_before = committed(broker), log_bytes(broker, "__consumer_offsets-0")
    assert len(before["id-0"]) == 4
    for _ in range(3):
        broker.advance(CLEANED_MS)
        broker.kill()
        assert committed(broker) == before
    assert log_bytes(broker, "__consumer_offsets-0") < bytes_before
