"""`kafka-transactions` and `kafka-delete-records` on both brokers."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from support.brokers.hanging import HangingTransaction, plant_hanging_transaction
from support.brokers.probe import wait_for, wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    produce_values,
    read_topic,
    transactional,
    values_of,
)
from support.kafka.java_tools import (
    CONFIGS,
    DELETE_RECORDS,
    GET_OFFSETS,
    TRANSACTIONS,
    Done,
    JavaHost,
)

pytestmark = pytest.mark.kafka

VERIFICATION = "transaction.partition.verification.enable"


@pytest.fixture
def transactions(java, bootstrap) -> Callable[..., Done]:
    """Runs kafka-transactions on the broker."""
    where = ("--bootstrap-server", bootstrap)
    return lambda *words: java.run(TRANSACTIONS, *where, *words)


@pytest.fixture
def leader_id(bootstrap, topic) -> str:
    """The id of the broker that leads the topic."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, 60)
    return str(found.topics[topic].partitions[0].leader)


def by(done: Done, column: str) -> dict[str, dict[str, str]]:
    """The rows of a table by one column; columns are split by tabs, and may be empty."""
    assert done.code == 0, done
    header, *rows = [[cell.strip() for cell in line.split("\t")] for line in done.lines]
    return {row[header.index(column)]: dict(zip(header, row, strict=False)) for row in rows}


@pytest.fixture
def hanging(java: JavaHost, broker, topic, unique) -> HangingTransaction:
    """A transaction that the coordinator knows nothing of, at offset 1 of the topic."""
    produce_values(broker.bootstrap_servers, topic, ["before"])
    entity = ("--entity-type", "brokers", "--entity-default")
    where = ("--bootstrap-server", broker.bootstrap_servers, *entity, "--alter")
    # With KIP-890's check no batch gets into a log without its coordinator's knowledge.
    java.ok(CONFIGS, *where, "--add-config", f"{VERIFICATION}=false")

    try:
        planted = plant_hanging_transaction(broker, topic, 0, unique("hanging"))
    finally:
        java.ok(CONFIGS, *where, "--delete-config", VERIFICATION)
    assert planted.start_offset == 1
    produce_values(broker.bootstrap_servers, topic, ["after"])
    return planted


def readable(broker, topic: str) -> list[str]:
    """What read_committed sees now."""
    return values_of(read_topic(broker.bootstrap_servers, topic))


def test_transactions_are_listed_and_described_through_their_life(
    transactions, bootstrap, topic, unique
):
    name, place = unique("life"), ("--topic", topic, "--partition", 0)
    writer = transactional(bootstrap, name, transaction_timeout_ms=50_000)

    def state() -> str:
        # Where a coordinator moves, it is in no broker's list for a moment.
        listed = by(transactions("list"), "TransactionalId")
        return listed[name]["TransactionState"] if name in listed else "in no list"

    wait_for(state, "Empty")
    writer.begin_transaction()
    writer.produce(topic, "v")
    assert writer.flush(TIMEOUT_S) == 0
    wait_for(state, "Ongoing")
    row = by(transactions("describe", "--transactional-id", name), "TransactionalId")[name]
    assert row["TransactionState"] == "Ongoing"
    assert row["TransactionTimeoutMs"] == "50000"
    assert row["TopicPartitions"] == f"{topic}-0"
    assert int(row["CurrentTransactionStartTimeMs"]) > 0
    assert int(row["TransactionDurationMs"]) >= 0
    producers = by(transactions("describe-producers", *place), "ProducerId")
    mine = producers[row["ProducerId"]]
    assert mine["ProducerEpoch"] == row["ProducerEpoch"]
    assert (mine["LastSequence"], mine["CurrentTransactionStartOffset"]) == ("0", "0")
    writer.commit_transaction(TIMEOUT_S)
    wait_until(lambda: state() == "CompleteCommit", "the end of the commit")
    producers = by(transactions("describe-producers", *place), "ProducerId")
    assert producers[row["ProducerId"]]["CurrentTransactionStartOffset"] == "None"


def test_listing_filters_by_duration_and_name(transactions, bootstrap, topic, unique):
    name = unique("filtered")
    writer = transactional(bootstrap, name)
    writer.begin_transaction()
    writer.produce(topic, "v")
    assert writer.flush(TIMEOUT_S) == 0

    def listed(*words: object) -> bool:
        return name in by(transactions("list", *words), "TransactionalId")

    # Where a coordinator moves, it is in no broker's list for a moment.
    wait_until(lambda: listed("--duration-filter", 0), "the transaction in a list")
    assert not listed("--duration-filter", 3_600_000)
    writer.abort_transaction(TIMEOUT_S)


def test_describing_what_is_not_there_is_refused(java, transactions, bootstrap, tmp_path, unique):
    done = transactions("describe", "--transactional-id", unique("absent"))
    assert done.code == 1
    assert "the ID could not be found" in done.err
    # The tool asks again until its time is over: a new topic is known to all brokers only then.
    path = tmp_path / "client.properties"
    path.write_text("default.api.timeout.ms=1000\nrequest.timeout.ms=1000\n")
    where = ("--bootstrap-server", bootstrap, "--command-config", path)
    words = ("describe-producers", "--topic", unique("absent"), "--partition", 0)
    assert java.run(TRANSACTIONS, *where, *words).code == 1


def test_an_ongoing_transaction_is_terminated_by_its_transactional_id(
    transactions, broker, topic, unique
):
    name = unique("forced")
    writer = transactional(broker.bootstrap_servers, name)
    writer.begin_transaction()
    writer.produce(topic, "v")
    assert writer.flush(TIMEOUT_S) == 0
    done = transactions("forceTerminateTransaction", "--transactionalId", name)
    assert done.code == 0

    def state() -> str:
        listed = by(transactions("list"), "TransactionalId")
        return listed[name]["TransactionState"] if name in listed else "in no list"

    # Kafka bumps the epoch once more with the same request: the state may be Empty already.
    wait_until(lambda: state() in ("CompleteAbort", "Empty"), "the abort")
    with pytest.raises(KafkaException) as caught:
        writer.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert readable(broker, topic) == []


@pytest.mark.no_kill("asks the leader of the moment by its id")
def test_a_hanging_transaction_is_found_and_aborted_by_its_start_offset(
    transactions, hanging, broker, leader_id, topic
):
    assert readable(broker, topic) == ["before"]
    for where in (("--broker-id", leader_id), ("--topic", topic)):
        row = by(transactions("find-hanging", *where), "Topic")[topic]
        assert (row["Partition"], row["StartOffset"]) == ("0", "1")
        assert row["ProducerId"] == str(hanging.producer_id)
        assert row["ProducerEpoch"] == str(hanging.producer_epoch)
    place = ("--topic", topic, "--partition", 0)
    wrong = transactions("abort", *place, "--start-offset", 0)
    assert (wrong.code, readable(broker, topic)) == (1, ["before"])
    assert transactions("abort", *place, "--start-offset", 1).code == 0
    assert readable(broker, topic) == ["after", "before"]
    assert topic not in by(transactions("find-hanging", "--broker-id", leader_id), "Topic")


def test_a_hanging_transaction_is_aborted_by_producer_and_coordinator_epoch(
    transactions, hanging, broker, topic
):
    words = ["--producer-id", hanging.producer_id, "--producer-epoch", hanging.producer_epoch]
    done = transactions(
        "abort", "--topic", topic, "--partition", 0, *words, "--coordinator-epoch", 0
    )
    assert done.code == 0
    assert readable(broker, topic) == ["after", "before"]
    seen = read_topic(broker.bootstrap_servers, topic, isolation="read_uncommitted")
    assert values_of(seen) == ["after", "before", "hangs"]


def test_an_abort_of_an_old_producer_epoch_is_refused(transactions, hanging, broker, topic):
    words = ["--producer-id", hanging.producer_id, "--producer-epoch", hanging.producer_epoch - 1]
    place = ("--topic", topic, "--partition", 0)
    done = transactions("abort", *place, *words, "--coordinator-epoch", 0)
    assert done.code == 1
    assert readable(broker, topic) == ["before"]


def test_records_are_deleted_up_to_an_offset(java, bootstrap, topic, tmp_path):
    produce_values(bootstrap, topic, [f"{n}" for n in range(10)])
    where = ("--bootstrap-server", bootstrap)
    path = tmp_path / "delete.json"

    def delete(offset: int) -> str:
        wanted = {"topic": topic, "partition": 0, "offset": offset}
        path.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        return java.ok(DELETE_RECORDS, *where, "--offset-json-file", path).lines[-1]

    assert delete(4) == f"partition: {topic}-0\tlow_watermark: 4"
    first = java.ok(GET_OFFSETS, *where, "--topic", topic, "--time", "-2")
    assert first.lines == [f"{topic}:0:4"]
    assert [each.offset for each in read_topic(bootstrap, topic)] == [*range(4, 10)]
    assert "OffsetOutOfRange" in delete(11)
    # Below the start nothing is left to do; -1 is the high watermark.
    assert delete(2).endswith("low_watermark: 4")
    assert delete(-1).endswith("low_watermark: 10")
    assert read_topic(bootstrap, topic) == []
