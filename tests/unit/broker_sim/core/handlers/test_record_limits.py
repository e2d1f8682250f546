"""Requests with values at the edge of what a record holds: refused or stored, never a crash."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, request, struct

from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

TOO_LONG = "g" * 40_000
"""More than the int16 of a record's key can say; a compact string of a request may be longer."""


def broker_with(key_type: int, key: str) -> BrokerOnDisk:
    """A broker that coordinates groups (key type 0) or transactional ids (1)."""
    broker = BrokerOnDisk()
    message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
    broker.ask(message, 4)
    return broker


def offset_commit(**fields):
    """OffsetCommit of offset 1 for partition 0 of `in`."""
    message = request(
        ApiKey.OFFSET_COMMIT, generation_id_or_member_epoch=-1, member_id="", **fields
    )
    topic = struct(message, "OffsetCommitRequestTopic", name="in")
    partition = struct(
        message,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=1,
        committed_metadata="",
    )
    topic.partitions = [partition]
    message.topics = [topic]
    return message


def init_producer_id(**fields):
    """InitProducerId of `t` without ids."""
    fields = {"transactional_id": "t", "producer_id": -1, "producer_epoch": -1} | fields
    return request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=60_000, **fields)


def test_an_offset_may_be_asked_to_be_kept_for_ever_by_the_largest_retention_time() -> None:
    broker = broker_with(0, "g")
    broker.create_topic("in")
    message = offset_commit(group_id="g", retention_time_ms=2**63 - 1)
    assert broker.ask(message, 2).topics[0].partitions[0].error_code == 0
    broker.kill()
    fetched = broker.broker.parts.groups.offset_fetch("g", None, require_stable=True)
    assert [o.committed_offset for o in fetched.offsets] == [1]


def test_a_group_id_that_no_record_holds_is_refused() -> None:
    broker = broker_with(0, "g")
    broker.create_topic("in")
    answer = broker.ask(offset_commit(group_id=TOO_LONG), 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID


def test_a_transactional_id_that_no_record_holds_is_refused() -> None:
    answer = broker_with(1, "t").ask(init_producer_id(transactional_id=TOO_LONG), 4)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("group_id", ErrorCode.INVALID_GROUP_ID),
        ("group_instance_id", ErrorCode.INVALID_REQUEST),
        ("protocol_type", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_member_that_no_record_holds_may_not_join(field, expected) -> None:
    broker = broker_with(0, "g")
    fields = {"group_id": "g", "group_instance_id": "i", "protocol_type": "consumer"}
    message = request(
        ApiKey.JOIN_GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        **fields | {field: TOO_LONG},
    )
    message.protocols = [struct(message, "JoinGroupRequestProtocol", name="range", metadata=b"")]
    assert broker.ask(message, 7).error_code == expected
    broker.advance(60_000)


def test_an_instance_id_that_fits_and_its_member_id_does_not_may_not_join() -> None:
    """The member id, which is longer, is what the group's record would fail on."""
    broker = broker_with(0, "g")
    message = request(
        ApiKey.JOIN_GROUP,
        group_id="g",
        group_instance_id="i" * 32_767,
        protocol_type="consumer",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
    )
    message.protocols = [struct(message, "JoinGroupRequestProtocol", name="range", metadata=b"")]
    assert broker.ask(message, 7).error_code == ErrorCode.INVALID_REQUEST


def _add_partition(broker: BrokerOnDisk, producer_id: int, producer_epoch: int) -> int:
    message = request(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
    )
    topic = struct(message, "AddPartitionsToTxnTopic", name="out", partitions=[0])
    message.v3_and_below_topics = [topic]
    answer = broker.ask(message, 3)
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def test_end_txn_5_bumps_the_epoch_whatever_transaction_version_is_finalized() -> None:
    broker = BrokerOnDisk({"transaction.version": 1})
    broker.create_topic("out")
    message = request(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=["t"])
    broker.ask(message, 4)
    got = broker.ask(init_producer_id(), 4)
    ids = {"producer_id": got.producer_id, "producer_epoch": got.producer_epoch}
    for committed in (True, False):
        assert _add_partition(broker, **ids) == 0
        message = request(ApiKey.END_TXN, transactional_id="t", committed=committed, **ids)
        answer = broker.ask(message, 5)
        assert (answer.error_code, answer.producer_epoch) == (0, ids["producer_epoch"] + 1)
        ids["producer_epoch"] = answer.producer_epoch
