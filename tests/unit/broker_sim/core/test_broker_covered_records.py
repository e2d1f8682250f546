"""Source offsets that survive a power loss: the records they cover must survive it as well."""

from __future__ import annotations

import random

import pytest
from support.core.broker_build import BrokerOnDisk, request, struct

from broker_sim.core.broker import Broker
from broker_sim.core.effects import Flush, Start
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

SEEDS = range(10)
PRODUCED = 10


def broker_with_records(config: dict | None = None) -> BrokerOnDisk:
    """Topics and coordinators are there, and ten acknowledged records in `in`."""
    broker = BrokerOnDisk(config)
    broker.create_topic("in")
    broker.create_topic("out")
    for key_type, key in ((0, "g"), (1, "t")):
        message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
        broker.ask(message, 4)
    for number in range(PRODUCED):
        assert broker.produce("in", f"v{number}").error_code == 0
    return broker


def commit_offset(broker: BrokerOnDisk) -> None:
    """A plain OffsetCommit of all that was produced."""
    message = request(
        ApiKey.OFFSET_COMMIT, group_id="g", generation_id_or_member_epoch=-1, member_id=""
    )
    _name_offset(message, "OffsetCommitRequest")
    assert broker.ask(message, 7).topics[0].partitions[0].error_code == 0


def commit_transaction(broker: BrokerOnDisk) -> None:
    """A transaction with one record in `out` and the same offset."""
    message = request(
        ApiKey.INIT_PRODUCER_ID,
        transactional_id="t",
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    got = broker.ask(message, 4)
    ids = {"producer_id": got.producer_id, "producer_epoch": got.producer_epoch}
    batch = encode_batch([Record(None, b"o")], base_sequence=0, transactional=True, **ids)
    (done,) = broker.produce_bytes({("out", 0): batch}, transactional_id="t", version=12)
    assert done.error_code == 0
    message = request(ApiKey.TXN_OFFSET_COMMIT, transactional_id="t", group_id="g", **ids)
    _name_offset(message, "TxnOffsetCommitRequest")
    assert broker.ask(message, 5).topics[0].partitions[0].error_code == 0
    message = request(ApiKey.END_TXN, transactional_id="t", committed=True, **ids)
    assert broker.ask(message, 5).error_code == 0


def _name_offset(message, prefix: str) -> None:
    topic = struct(message, f"{prefix}Topic", name="in")
    topic.partitions = [
        struct(
            message,
            f"{prefix}Partition",
            partition_index=0,
            committed_offset=PRODUCED,
            committed_metadata="",
        )
    ]
    message.topics = [topic]


@pytest.mark.parametrize("commit", [commit_offset, commit_transaction])
def test_committed_offsets_do_not_outlive_the_records_they_cover(commit) -> None:
    for seed in SEEDS:
        broker = broker_with_records()
        commit(broker)
        broker.disk.lose_power(random.Random(seed))
        broker.broker = Broker(broker.config, broker.disk, random.Random(seed))
        broker.step(Start("boot-2"))
        state = broker.broker.parts
        fetched = state.groups.offset_fetch("g", None, require_stable=True)
        assert [o.committed_offset for o in fetched.offsets] == [PRODUCED], seed
        assert state.logs.get("in", 0).log_end_offset == PRODUCED, seed


def test_the_records_of_a_killed_broker_are_covered_too() -> None:
    """They were recovered from the machine's memory, and nothing had flushed them since."""
    broker = broker_with_records()
    broker.kill()
    commit_offset(broker)
    broker.disk.lose_power(random.Random(1))
    broker.broker = Broker(broker.config, broker.disk, random.Random(1))
    broker.step(Start("boot-2"))
    assert broker.broker.parts.logs.get("in", 0).log_end_offset == PRODUCED


def test_a_second_commit_of_flushed_records_does_not_flush_them_again() -> None:
    broker = broker_with_records()
    commit_offset(broker)
    assert any("in-0" in path for path in _flushed_by_last_step(broker))
    commit_offset(broker)
    assert not any("in-0" in path for path in _flushed_by_last_step(broker))


def test_nothing_is_flushed_when_flush_on_commit_is_off() -> None:
    broker = broker_with_records({"flush.on.commit": "false"})
    commit_offset(broker)
    assert _flushed_by_last_step(broker) == []


def _flushed_by_last_step(broker: BrokerOnDisk) -> list[str]:
    flushes = [each for each in broker.steps[-1].storage if isinstance(each, Flush)]
    return [path for flush in flushes for path in flush.paths]
