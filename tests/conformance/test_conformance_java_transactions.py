"""`kafka-transactions` on both brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.java_tools import (
    TRANSACTIONS,
    Done,
)
from support.librdkafka import (
    TIMEOUT_S,
    create_topic,
    read_topic,
    transactional,
    values_of,
)
from support.probe import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def transactions(java, broker) -> Callable[..., Done]:
    """Runs kafka-transactions on the broker."""
    where = ("--bootstrap-server", broker.bootstrap_servers)
    return lambda *words: java.run(TRANSACTIONS, *where, *words)


@pytest.fixture
def topic(broker, unique) -> str:
    """A topic with one partition."""
    return create_topic(broker.bootstrap_servers, unique("transactions"))


def by(done: Done, column: str) -> dict[str, dict[str, str]]:
    """The rows of a table by one column; columns are split by tabs, and may be empty."""
    assert done.code == 0, done
    header, *rows = [[cell.strip() for cell in line.split("\t")] for line in done.lines]
    return {row[header.index(column)]: dict(zip(header, row, strict=False)) for row in rows}


def readable(broker, topic: str) -> list[str]:
    """What read_committed sees now."""
    return values_of(read_topic(broker.bootstrap_servers, topic))


def test_transactions_are_listed_and_described_through_their_life(
    transactions, broker, topic, unique
):
    name, place = unique("life"), ("--topic", topic, "--partition", 0)
    writer = transactional(broker.bootstrap_servers, name, transaction_timeout_ms=50_000)

    def state() -> str:
        return by(transactions("list"), "TransactionalId")[name]["TransactionState"]

    assert state() == "Empty"
    writer.begin_transaction()
    writer.produce(topic, "v")
    assert writer.flush(TIMEOUT_S) == 0
    assert state() == "Ongoing"
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


def test_listing_filters_by_duration_and_name(transactions, broker, topic, unique):
    name = unique("filtered")
    writer = transactional(broker.bootstrap_servers, name)
    writer.begin_transaction()
    writer.produce(topic, "v")
    assert writer.flush(TIMEOUT_S) == 0

    def listed(*words: object) -> bool:
        return name in by(transactions("list", *words), "TransactionalId")

    assert listed("--duration-filter", 0)
    assert not listed("--duration-filter", 3_600_000)
    writer.abort_transaction(TIMEOUT_S)


def test_describing_what_is_not_there_is_refused(transactions, unique):
    done = transactions("describe", "--transactional-id", unique("absent"))
    assert done.code == 1
    assert "the ID could not be found" in done.err
    done = transactions("describe-producers", "--topic", unique("absent"), "--partition", 0)
    assert done.code == 1


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
        return by(transactions("list"), "TransactionalId")[name]["TransactionState"]

    # Kafka bumps the epoch once more with the same request: the state may be Empty already.
    wait_until(lambda: state() in ("CompleteAbort", "Empty"), "the abort")
    with pytest.raises(KafkaException) as caught:
        writer.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert readable(broker, topic) == []
