"""Hanging transactions: open in a partition, unknown to their coordinator (KIP-664).

Before KIP-890 a Produce that was delayed past its transaction's end left one. A broker that
verifies makes that impossible, so it must be started with VERIFICATION_OFF; then a batch that was
never added to a transaction is all it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.brokers.probe import wait_for
from support.raw.raw import Connection, RawProducer
from support.raw.requests import request
from support.raw.routed import connect

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

VERIFICATION_OFF = {"transaction.partition.verification.enable": "false"}


@dataclass(frozen=True)
class HangingTransaction:
    """Transaction that no coordinator will ever end; its records are of 2023."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    start_offset: int


def plant_hanging_transaction(
    broker: Any, topic: str, partition: int, transactional_id: str
) -> HangingTransaction:
    """Leave one behind on a partition of a broker with VERIFICATION_OFF.

    One that switches the check off while it runs describes it as off before it leaves it out.
    """
    with connect(broker) as connection:
        producer = RawProducer(connection, transactional_id)
        assert producer.find_coordinator() == "NONE"
        assert producer.init() == "NONE"
        wait_for(lambda: producer.produce(topic, partition, "hangs", version=11), "NONE")
        return HangingTransaction(transactional_id, *producer.identity, producer.last_offset)


def write_marker(
    connection: Connection,
    identity: tuple[int, int],
    place: tuple[str, int],
    *,
    commit: bool = False,
    coordinator_epoch: int = -1,
    transaction_version: int | None = None,
) -> str:
    """WriteTxnMarkers for one partition; coordinator epoch -1 is an administrator's.

    With a `transaction_version` the request is of version 2, as brokers send it (KIP-1228).
    """
    marker = {
        "producer_id": identity[0],
        "producer_epoch": identity[1],
        "transaction_result": commit,
        "topics": [{"name": place[0], "partition_indexes": [place[1]]}],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version or 0,
    }
    message = request(ApiKey.WRITE_TXN_MARKERS, markers=[marker])
    answer = connection.ask(message, 1 if transaction_version is None else 2)
    ((result,),) = [topic.partitions for topic in answer.markers[0].topics]
    return error_name(result.error_code)


def list_transactions(
    connection: Connection, *, pattern: str | None = None, version: int = 2, **filters
) -> tuple:
    """(error, [(transactional id, state)]) of ListTransactions, sorted; 3.9 has no version 2."""
    settings = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
    message = request(ApiKey.LIST_TRANSACTIONS, transactional_id_pattern=pattern, **settings)
    answer = connection.ask(message, version)
    listed = sorted((t.transactional_id, t.transaction_state) for t in answer.transaction_states)
    return error_name(answer.error_code), listed


def active_producers(connection: Connection, topic: str, partition: int) -> tuple[str, list]:
    """(error, the producer states) of DescribeProducers for one partition."""
    topics = [{"name": topic, "partition_indexes": [partition]}]
    message = request(ApiKey.DESCRIBE_PRODUCERS, topics=topics)
    answer = connection.ask(message, 0).topics[0].partitions[0]
    return error_name(answer.error_code), list(answer.active_producers)
