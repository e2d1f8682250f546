"""Free space is under the reserve: what grows the log is refused as a whole, the rest goes on."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, produce_request, request, struct
from support.raw.hostile import good_batch, state_digest

from broker_sim.core.effects import Flush, StorageSpace
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.messages import ApiKey


@pytest.fixture
def broker() -> BrokerOnDisk:
    """With a topic, both coordinators, an ongoing transaction of "t", and then no room."""
    made = BrokerOnDisk()
    made.create_topic("orders", 2)
    for key_type in (0, 1):
        made.ask(request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["t"]), 4)
    init(made)
    produce_in_transaction(made, 0)
    made.step(StorageSpace(is_low=True))
    return made


def init(broker: BrokerOnDisk, transactional_id: str | None = "t"):
    message = request(
        ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=60_000,
        producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    return broker.ask(message, 4)


def produce_in_transaction(broker: BrokerOnDisk, partition: int, *, sequence: int = 0) -> int:
    batch = good_batch("a", producer_id=0, producer_epoch=0, base_sequence=sequence,
                       transactional=True)  # fmt: skip
    batches = {("orders", partition): bytes(batch)}
    return broker.produce_bytes(batches, transactional_id="t", version=12)[0].error_code


def end(broker: BrokerOnDisk, *, commit: bool) -> int:
    message = request(
        ApiKey.END_TXN, transactional_id="t", producer_id=0, producer_epoch=0, committed=commit
    )
    return broker.ask(message, 3).error_code


def commit_offset(broker: BrokerOnDisk, api: ApiKey, **fields) -> int:
    message = request(api, group_id="t", member_id="", **fields)
    prefix = "Txn" if api is ApiKey.TXN_OFFSET_COMMIT else ""
    name = f"{prefix}OffsetCommitRequestTopic"
    partition = struct(
        message, f"{prefix}OffsetCommitRequestPartition", partition_index=0, committed_offset=1
    )
    message.topics = [struct(message, name, name="orders", partitions=[partition])]
    return broker.ask(message, 3).topics[0].partitions[0].error_code


def digest(broker: BrokerOnDisk):
    return state_digest(broker.ask, ["orders"], ["t"], ["t"])


def test_what_appends_is_refused_and_leaves_no_trace(broker):
    before = digest(broker)
    steps = len(broker.steps)
    assert broker.produce("orders", "a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce_in_transaction(broker, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.create_topic("more").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert init(broker).error_code == ErrorCode.NOT_COORDINATOR
    assert init(broker, "other").error_code == ErrorCode.NOT_COORDINATOR
    plain = {"generation_id_or_member_epoch": -1, "retention_time_ms": -1}
    assert commit_offset(broker, ApiKey.OFFSET_COMMIT, **plain) == ErrorCode.NOT_COORDINATOR
    inside = {"transactional_id": "t", "producer_id": 0, "producer_epoch": 0}
    code = commit_offset(broker, ApiKey.TXN_OFFSET_COMMIT, **inside, generation_id=-1)
    assert code != 0
    grow = request(ApiKey.CREATE_PARTITIONS, timeout_ms=1, validate_only=False)
    grow.topics = [struct(grow, "CreatePartitionsTopic", name="orders", count=5, assignments=None)]
    assert broker.ask(grow, 1).results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    by_name = request(ApiKey.METADATA, allow_auto_topic_creation=True)
    by_name.topics = [struct(by_name, "MetadataRequestTopic", name="automatic")]
    assert broker.ask(by_name, 8).topics[0].error_code != 0
    written = [each for step in broker.steps[steps:] for each in step.storage]
    assert [each for each in written if not isinstance(each, Flush)] == []
    assert digest(broker) == before
    broker.kill()
    assert digest(broker) == before


def test_without_acks_the_refusal_closes_the_connection(broker):
    broker.send(produce_request({("orders", 0): bytes(good_batch("a"))}, 0), 11, connection_id=9)
    assert "KAFKA_STORAGE_ERROR" in broker.asked.closed[9]


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_may_end_and_its_readers_go_on(broker, commit):
    assert broker.fetch("orders").last_stable_offset == 0
    assert end(broker, commit=commit) == 0
    assert broker.fetch("orders", committed=True).last_stable_offset == 2
    assert digest(broker)[2][0][2] == ("CompleteCommit" if commit else "CompleteAbort")


def test_an_open_transaction_still_times_out(broker):
    broker.advance(120_000)
    assert digest(broker)[2][0][2] == "CompleteAbort"


def test_what_makes_room_is_allowed(broker):
    broker.step(StorageSpace(is_low=False))
    broker.create_topic("old")
    broker.step(StorageSpace(is_low=True))
    change = request(ApiKey.INCREMENTAL_ALTER_CONFIGS, validate_only=False)
    entry = struct(change, "AlterableConfig", name="retention.bytes", config_operation=0, value="1")
    change.resources = [
        struct(change, "AlterConfigsResource", resource_type=2, resource_name="orders",
               configs=[entry])
    ]  # fmt: skip
    assert broker.ask(change, 1).responses[0].error_code == 0
    message = request(ApiKey.DELETE_TOPICS, topic_names=["old"], timeout_ms=1)
    assert broker.ask(message, 5).responses[0].error_code == 0


def test_an_internal_topic_that_is_first_needed_now_is_not_made():
    broker = BrokerOnDisk()
    broker.step(StorageSpace(is_low=True))
    message = request(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
    answer = broker.ask(message, 4).coordinators[0]
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    add = request(ApiKey.ADD_OFFSETS_TO_TXN, transactional_id="t", producer_id=0,
                  producer_epoch=0, group_id="g")  # fmt: skip
    assert broker.ask(add, 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.step(StorageSpace(is_low=False))
    assert broker.ask(message, 4).coordinators[0].error_code == 0


def test_everything_goes_on_when_there_is_room_again(broker):
    broker.step(StorageSpace(is_low=False))
    assert broker.produce("orders", "a").error_code == 0
    assert produce_in_transaction(broker, 1) == 0
    assert end(broker, commit=True) == 0
