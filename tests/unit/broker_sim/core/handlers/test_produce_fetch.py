"""Produce and Fetch through the handlers: refusals in Kafka's words, long polls, limits."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, fetch_request, produce_request
from support.raw.raw import RawProducer

from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    iter_batches,
)


@pytest.fixture
def broker() -> BrokerOnDisk:
    return with_topic()


def with_topic(**config) -> BrokerOnDisk:
    made = BrokerOnDisk({name.replace("_", "."): value for name, value in config.items()})
    made.create_topic("orders", 2)
    return made


@pytest.fixture
def producer(broker) -> RawProducer:
    return begun(broker)


def begun(broker: BrokerOnDisk) -> RawProducer:
    """A transactional producer with its id."""
    broker.find_coordinators()
    made = broker.producer()
    assert made.init() == "NONE"
    return made


def batch(*values: str, **producer) -> bytes:
    return encode_batch([Record(None, v.encode(), 1) for v in values], **producer)


def ask(producer: RawProducer, *, version: int, name: str | None = "t", **data: bytes) -> list[str]:
    """Produce to the partitions `p0` and `p1` of `orders`: their errors."""
    batches = {("orders", int(place[1])): records for place, records in data.items()}
    results = producer.connection.produce_bytes(batches, transactional_id=name, version=version)
    return [error_name(result.error_code) for result in results]


# --------------------------------------------------------------------------- produce


def refusals() -> dict[str, tuple[bytes | None, ErrorCode]]:
    good = batch("a", "b")
    control = batch("a", producer_id=1, producer_epoch=0, base_sequence=0, control=True)
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    return {
        "no records": (None, ErrorCode.INVALID_RECORD),
        "empty": (b"", ErrorCode.INVALID_RECORD),
        "old magic": (good[:16] + b"\x01" + good[17:], ErrorCode.INVALID_RECORD),
        "future magic": (good[:16] + b"\x03" + good[17:], ErrorCode.CORRUPT_MESSAGE),
        "header only in part": (good[:40], ErrorCode.INVALID_RECORD),
        "cut before the magic": (good[:16], ErrorCode.INVALID_RECORD),
        "cut": (good[:-1], ErrorCode.INVALID_RECORD),
        "bit flipped": (flipped, ErrorCode.CORRUPT_MESSAGE),
        "two batches": (good + good, ErrorCode.INVALID_RECORD),
        "control": (control, ErrorCode.INVALID_RECORD),
        "transactional without id of a producer": (
            batch("a", transactional=True),
            ErrorCode.INVALID_RECORD,
        ),
    }


@pytest.mark.parametrize("name", refusals())
def test_a_wrong_batch_is_refused_and_the_next_one_gets_its_offset(broker, name):
    data, error = refusals()[name]
    results = broker.produce_bytes({("orders", 0): data}, transactional_id="t")
    assert results[0].error_code == error
    assert results[0].base_offset == -1
    assert broker.produce("orders", "next").base_offset == 0


def test_a_refused_sequence_is_answered_with_the_log_start_and_a_duplicate_with_its_time(broker):
    def ask(sequence: int, data: bytes | None = None):
        data = data or batch("a", producer_id=7, producer_epoch=0, base_sequence=sequence)
        return broker.produce_bytes({("orders", 0): data})[0]

    assert (ask(0).error_code, ask(0).log_append_time_ms) == (ErrorCode.NONE, 1)
    refused = ask(5)
    assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused.log_start_offset == 0
    flipped = batch("a")[:-1] + b"?"
    assert ask(0, flipped).log_start_offset == -1


def test_a_marker_of_a_client_joins_its_transaction_and_keeps_the_rest_of_it_out(broker, producer):
    """Kafka behaves alike, because only its append looks at the kind of a batch.

    The partition is in the transaction, and until the end no batch may follow the refused batch.
    """
    marker = TransactionMarker(*producer.identity, MarkerType.COMMIT, 0)
    data = encode_marker(marker, timestamp=1)
    assert producer.produce_bytes("orders", 0, data, version=12) == "INVALID_RECORD"
    assert producer.produce("orders", 0, "a", version=12) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert producer.end(commit=False, version=5) == "NONE"
    assert broker.fetch("orders").high_watermark == 1


def test_one_refused_partition_does_not_stop_the_others(broker):
    results = broker.produce_bytes(
        {("orders", 0): batch("a")[:-1], ("orders", 1): batch("b"), ("no-such", 0): batch("c")}
    )
    assert [r.error_code for r in results] == [
        ErrorCode.INVALID_RECORD,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_without_acks_there_is_no_answer_and_an_error_closes_the_connection(broker):
    key = broker.send(produce_request({("orders", 0): batch("a")}, 0), 11)
    assert key in broker.asked.unanswered
    assert broker.asked.closed == {}
    assert broker.fetch("orders").high_watermark == 1
    broker.send(produce_request({("no-such", 0): batch("a")}, 0), 11, connection_id=2)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in broker.asked.closed[2]


def test_clients_cannot_write_to_internal_topics(broker):
    broker.find_coordinators()
    result = broker.produce_bytes({("__transaction_state", 0): batch("a")})[0]
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("setting", "error"), [(False, "INVALID_TXN_STATE"), (True, "PRODUCER_FENCED")]
)
def test_the_answer_to_a_commit_that_came_after_the_abort_is_an_option(setting, error):
    """KAFKA-20785: the timeout aborted first; 4.4 is fatal there, later releases are not."""
    broker = with_topic(transaction_fence_commit_after_abort=setting)
    producer = begun(broker)
    assert producer.produce("orders", 0, "a", version=12) == "NONE"
    broker.advance(900_000)
    assert producer.end(commit=True, version=5) == error


def test_a_transactional_batch_without_transactional_id_refuses_the_whole_request(producer):
    data = {"p0": producer.batch("a", sequence=0), "p1": batch("b")}
    told = ask(producer, version=11, name=None, **data)
    assert told == ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"] * 2


@pytest.mark.invariant(24)
@pytest.mark.parametrize(
    ("version", "error"), [(10, "INVALID_TXN_STATE"), (11, "TRANSACTION_ABORTABLE")]
)
def test_a_partition_that_was_not_added_is_refused_by_verification(
    broker, producer, version, error
):
    assert producer.produce("orders", 0, "a", version=version) == error
    assert broker.fetch("orders").high_watermark == 0


def test_without_verification_it_is_appended_as_before_kip_890():
    broker = with_topic(transaction_partition_verification_enable=False)
    assert begun(broker).produce("orders", 0, "a") == "NONE"


def test_version_12_adds_the_partition_itself_and_end_txn_5_gives_the_next_epoch(broker, producer):
    old = producer.identity
    data = {"p0": producer.batch("a", sequence=0), "p1": producer.batch("b", sequence=0)}
    assert ask(producer, version=12, **data) == ["NONE", "NONE"]
    assert broker.fetch("orders", committed=True).last_stable_offset == 0
    assert producer.end(commit=True, version=5) == "NONE"
    assert producer.identity == (old[0], old[1] + 1)
    assert broker.fetch("orders", committed=True).last_stable_offset == 2
    assert ask(producer, version=12, **data) == ["INVALID_PRODUCER_EPOCH"] * 2


def test_version_12_adds_the_partition_whatever_transaction_version_is_finalized():
    """Kafka behaves alike: clients look at the finalized feature, the broker at the request's
    version."""
    broker = with_topic(transaction_version=1)
    assert begun(broker).produce("orders", 0, "a", version=12) == "NONE"


def test_transactional_batches_of_two_producers_in_one_request_are_no_mapping(broker, producer):
    data = {"p0": producer.batch("a", sequence=0)}
    producer.producer_id += 1
    data["p1"] = producer.batch("b", sequence=0)
    assert ask(producer, version=12, **data) == ["INVALID_PRODUCER_ID_MAPPING"] * 2
    assert broker.fetch("orders").high_watermark == 0


def test_an_epoch_older_than_the_partitions_is_refused_before_the_coordinator_is_asked(producer):
    """KAFKA-18042: whatever the coordinator would say of the id."""
    data = {"p0": producer.batch("a", sequence=0)}
    assert ask(producer, version=12, **data) == ["NONE"]
    assert producer.end(commit=False, version=5) == "NONE"
    assert ask(producer, version=12, name="another", **data) == ["INVALID_PRODUCER_EPOCH"]


def test_a_batch_may_not_overtake_one_that_the_coordinator_refused(producer):
    first, second = (producer.batch(value, sequence=at) for at, value in enumerate("ab"))
    assert ask(producer, version=11, p0=first) == ["TRANSACTION_ABORTABLE"]
    assert ask(producer, version=12, p0=second) == ["OUT_OF_ORDER_SEQUENCE_NUMBER"]
    for data in (first, second):
        assert ask(producer, version=11, p0=data) == ["NONE"]


# --------------------------------------------------------------------------- fetch


def values_of(partition) -> list[int]:
    return [header.base_offset for header, _ in iter_batches(bytes(partition.records or b""))]


def test_a_fetch_with_enough_bytes_is_answered_at_once(broker):
    broker.produce("orders", "a")
    assert values_of(broker.fetch("orders", max_wait_ms=500)) == [0]


def test_a_long_poll_is_answered_by_the_append(broker):
    key = broker.send(fetch_request("orders"), 12)
    assert key not in broker.asked.answers
    broker.produce("orders", "a", partition=1)
    assert key not in broker.asked.answers
    broker.produce("orders", "a")
    assert values_of(broker.asked.answers[key].responses[0].partitions[0]) == [0]
    assert len(broker.parts.fetches) == 0
    assert not [timer for timer in broker.timers if timer[0] == "fetch"]


def test_a_long_poll_waits_for_min_bytes_and_is_answered_empty_at_its_deadline(broker):
    key = broker.send(fetch_request("orders", min_bytes=10_000, max_wait_ms=300), 12)
    broker.produce("orders", "a")
    assert key not in broker.asked.answers
    broker.advance(299)
    assert key not in broker.asked.answers
    broker.advance(1)
    assert values_of(broker.asked.answers[key].responses[0].partitions[0]) == [0]


def test_a_long_poll_under_read_committed_is_answered_by_the_marker_with_the_aborted_list(
    broker, producer
):
    producer.produce("orders", 0, "a", version=12)
    producer_id = producer.producer_id
    key = broker.send(fetch_request("orders", committed=True), 12)
    assert key not in broker.asked.answers
    producer.end(commit=False, version=5)
    partition = broker.asked.answers[key].responses[0].partitions[0]
    aborted = [(a.producer_id, a.first_offset) for a in partition.aborted_transactions]
    assert aborted == [(producer_id, 0)]
    assert values_of(partition) == [0, 1]


def test_a_disconnected_long_poll_is_forgotten(broker):
    broker.send(fetch_request("orders"), 12, connection_id=7)
    broker.disconnect(7)
    assert len(broker.parts.fetches) == 0
    broker.produce("orders", "a")
    assert not broker.asked.answers.get((7, 1))


def test_a_deleted_topic_answers_its_long_polls(broker):
    key = broker.send(fetch_request("orders"), 12)
    broker.delete_topic("orders")
    partition = broker.asked.answers[key].responses[0].partitions[0]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-1, 2, 10**12])
def test_an_offset_outside_of_the_log_is_refused_at_once(broker, offset):
    broker.produce("orders", "a")
    partition = broker.fetch("orders", offset, max_wait_ms=10_000)
    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_of_a_partition_fetched_twice_the_last_entry_counts_and_it_is_answered_once(broker):
    broker.produce("orders", "a")
    broker.produce("orders", "b")
    message = fetch_request("orders", 0, max_wait_ms=0)
    again = fetch_request("orders", 1)
    other = fetch_request("orders", 0, partition=1)
    message.topics += other.topics + again.topics
    found = [
        (topic.topic, p.partition_index, len(list(iter_batches(p.records or b""))))
        for topic in broker.ask(message, 12).responses
        for p in topic.partitions
    ]
    assert found == [("orders", 0, 1), ("orders", 1, 0)]


def test_the_byte_limit_holds_but_the_first_batch_always_comes(broker):
    for _ in range(3):
        broker.produce("orders", "x" * 100)
    assert values_of(broker.fetch("orders", max_bytes=1)) == [0]
    assert values_of(broker.fetch("orders", max_bytes=400)) == [0, 1]


def test_log_append_time_is_told_to_the_producer(broker):
    broker.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
    assert broker.produce("stamped", "a").log_append_time_ms == broker.now_ms
