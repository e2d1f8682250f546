"""Free space is under the reserve: what grows the log is refused as a whole, the rest goes on."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, offset_commit, produce_request, request
from support.raw.hostile import good_batch, state_digest
from support.raw.raw import RawProducer
from support.raw.raw_admin import create_partitions

from broker_sim.core.effects import Flush, StorageSpace
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey


@pytest.fixture
def broker() -> BrokerOnDisk:
    """Return a broker with a topic, both coordinators, an ongoing transaction of "t", and a full
    disk."""
    made = BrokerOnDisk()
    made.create_topic("orders", 2)
    made.find_coordinators()
    producer = made.producer()
    assert producer.init() == "NONE"
    assert producer.produce("orders", 0, "a", version=12) == "NONE"
    made.step(StorageSpace(is_low=True))
    return made


def holder(broker: BrokerOnDisk) -> RawProducer:
    """Return the producer of the ongoing transaction."""
    producer = broker.producer()
    producer.producer_id, producer.producer_epoch = 0, 0
    return producer


def digest(broker: BrokerOnDisk):
    return state_digest(broker.ask, ["orders"], ["t"], ["t"])


def test_what_appends_is_refused_and_leaves_no_trace(broker):
    before = digest(broker)
    steps = len(broker.steps)
    assert broker.produce("orders", "a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert holder(broker).produce("orders", 1, "a", version=12) == "KAFKA_STORAGE_ERROR"
    assert broker.create_topic("more").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for name in ("t", "other"):
        assert broker.producer(name).init() == "NOT_COORDINATOR"
    answer = broker.ask(offset_commit(group_id="t"), 3)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert holder(broker).commit_offset("t", "orders", 0, 1, version=3) != "NONE"
    told = create_partitions(broker, ("orders", 5, None))
    assert told == [("orders", "KAFKA_STORAGE_ERROR")]
    by_name = request(ApiKey.METADATA, topics=[{"name": "automatic"}])
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
    assert holder(broker).end(commit=commit, version=3) == "NONE"
    assert broker.fetch("orders", committed=True).last_stable_offset == 2
    assert digest(broker)[2][0][2] == ("CompleteCommit" if commit else "CompleteAbort")


def test_an_open_transaction_still_times_out(broker):
    broker.advance(120_000)
    assert digest(broker)[2][0][2] == "CompleteAbort"


def test_what_makes_room_is_allowed(broker):
    broker.step(StorageSpace(is_low=False))
    broker.create_topic("old")
    broker.step(StorageSpace(is_low=True))
    assert broker.alter_topic("orders", "retention.bytes", "1") == 0
    assert broker.delete_topic("old") == 0


def test_an_internal_topic_that_is_first_needed_now_is_not_made():
    broker = BrokerOnDisk()
    broker.step(StorageSpace(is_low=True))
    message = request(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
    answer = broker.ask(message, 4).coordinators[0]
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert holder(broker).add_offsets("g") == "COORDINATOR_NOT_AVAILABLE"
    broker.step(StorageSpace(is_low=False))
    assert broker.ask(message, 4).coordinators[0].error_code == 0


def test_everything_goes_on_when_there_is_room_again(broker):
    broker.step(StorageSpace(is_low=False))
    assert broker.produce("orders", "a").error_code == 0
    producer = holder(broker)
    assert producer.produce("orders", 1, "a", version=12) == "NONE"
    assert producer.end(commit=True, version=3) == "NONE"
