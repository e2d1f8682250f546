"""Requests from broker to broker, and from an operator's tool; any client may send them.

The requests are AddPartitionsToTxn from version 4 on, and WriteTxnMarkers.
"""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, request, struct
from support.raw.raw import RawProducer

from broker_sim.core.coordinator.runtime import partition_for
from broker_sim.core.transaction.log_records import decode_value
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import decode_records, iter_batches

E, K = ErrorCode, ApiKey
PLACE = ("data", 0)
LOG, OFFSETS = "__transaction_state", "__consumer_offsets"


def started() -> tuple[BrokerOnDisk, RawProducer]:
    """A broker with a topic of one partition, and a producer that was initialised."""
    broker = BrokerOnDisk()
    broker.create_topic(PLACE[0])
    producer = RawProducer(broker, "t", retries=False)
    assert producer.find_coordinator("g", 0) == "NONE"
    assert (producer.find_coordinator(), producer.init()) == ("NONE", "NONE")
    return broker, producer


# ---------------------------------------------------------------- AddPartitionsToTxn


def add_batch(
    broker: BrokerOnDisk, producer: RawProducer, *places: tuple[str, int], verify_only: bool
) -> dict[tuple[str, int], ErrorCode]:
    message = request(K.ADD_PARTITIONS_TO_TXN)
    topics = [
        struct(message, "AddPartitionsToTxnTopic", name=topic, partitions=[partition])
        for topic, partition in places
    ]
    message.transactions = [
        struct(
            message,
            "AddPartitionsToTxnTransaction",
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            verify_only=verify_only,
            topics=topics,
        )
    ]
    (result,) = broker.ask(message, 5).results_by_transaction
    return {
        (topic.name, place.partition_index): ErrorCode(place.partition_error_code)
        for topic in result.topic_results
        for place in topic.results_by_partition
    }


@pytest.mark.parametrize("verify_only", [True, False])
def test_a_partition_that_is_not_there_is_unknown_and_the_others_are_not_looked_at(verify_only):
    broker, producer = started()
    assert producer.add_partitions(*PLACE) == "NONE"
    asked = [PLACE, ("data", 7), ("nothing", 0)]
    assert add_batch(broker, producer, *asked, verify_only=verify_only) == {
        PLACE: E.OPERATION_NOT_ATTEMPTED,
        ("data", 7): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("nothing", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_partitions_that_a_broker_adds_are_of_transaction_version_2():
    broker, producer = started()
    assert add_batch(broker, producer, PLACE, verify_only=False) == {PLACE: E.NONE}
    data = bytes(broker.fetch(LOG, partition=partition_for("t", 2)).records)
    *_, (header, position) = iter_batches(data)
    (record,) = decode_records(data, position, header)
    assert decode_value("t", record.value).client_transaction_version == 2


# ---------------------------------------------------------------- WriteTxnMarkers


def write_markers(broker: BrokerOnDisk, *partitions: int, **fields) -> list[tuple]:
    """(producer id, [(partition, error)]) of an ABORT on these partitions."""
    message = request(K.WRITE_TXN_MARKERS)
    topic = struct(message, "WritableTxnMarkerTopic", name="data", partition_indexes=[*partitions])
    known = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0}
    marker = {"transaction_result": False, "transaction_version": 0, "topics": [topic]}
    message.markers = [struct(message, "WritableTxnMarker", **known | marker | fields)]
    return [
        (
            result.producer_id,
            [
                (p.partition_index, ErrorCode(p.error_code))
                for t in result.topics
                for p in t.partitions
            ],
        )
        for result in broker.ask(message, 2).markers
    ]


@pytest.mark.parametrize(
    "fields", [{"producer_id": -1}, {"producer_epoch": -1}, {"transaction_version": -1}]
)
def test_a_marker_that_says_not_whose_it_is_or_by_which_rule_is_not_written(fields):
    broker, _ = started()
    ((_, answered),) = write_markers(broker, 0, 9, **fields)
    assert answered == [(0, E.UNKNOWN_SERVER_ERROR), (9, E.UNKNOWN_TOPIC_OR_PARTITION)]
    assert broker.fetch("data").high_watermark == 0


def test_an_old_epoch_is_told_before_a_missing_transaction_version():
    broker, producer = started()
    assert producer.produce("data", 0, "a", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    fields = {"producer_id": producer.producer_id, "transaction_version": -1}
    assert write_markers(broker, 0, producer_epoch=0, **fields) == [
        (producer.producer_id, [(0, E.INVALID_PRODUCER_EPOCH)])
    ]


def test_a_marker_for_no_partition_is_not_answered():
    broker, _ = started()
    assert write_markers(broker) == []
    assert write_markers(broker, 0) == [(7, [(0, E.NONE)])]


def test_a_partition_that_fences_its_marker_does_not_keep_the_others_from_theirs():
    broker, producer = started()
    broker.create_topic("more", 2)
    for topic, partition in (("data", 0), ("more", 0), ("more", 1)):
        assert producer.produce(topic, partition, "a", version=12) == "NONE"
    # An operator ends the first by hand, at an epoch that the coordinator does not know of.
    (ended,) = write_markers(
        broker, 0, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch + 9
    )
    assert ended == (producer.producer_id, [(0, E.NONE)])
    assert producer.end(commit=True, version=5) == "NONE"
    for partition in (0, 1):
        answer = broker.fetch("more", partition=partition)
        assert (answer.last_stable_offset, answer.high_watermark) == (2, 2)
    # Somebody else has decided: this coordinator does not say that it is complete.
    assert producer.init(resume=True) == "CONCURRENT_TRANSACTIONS"
