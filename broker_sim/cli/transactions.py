"""Commands `transactions list | describe | describe-producers | find-hanging | abort`.

They do the work of kafka-transactions. A transaction hangs if a partition holds it open and the
coordinator does not know it: then read_committed consumers wait there for ever (KIP-664). `abort`
writes the marker by hand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker_sim.cli.arguments import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    UsageError,
    add_command,
    number,
    one_of,
)
from broker_sim.cli.cluster import Cluster, Refused, check_code
from broker_sim.cli.printing import Output, Table
from txnlog_kafka.operations import admin
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

TIMEOUT_MINUTES = 15
"""Kafka's default of transaction.max.timeout.ms, in minutes."""
NO_TRANSACTION = -1
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""States of Kafka's `TransactionState`."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Producer with an open transaction in a partition, as the partition's leader describes it."""

    partition: TopicPartition
    producer: Message


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options of all transaction commands."""
    parser = commands.add_parser(
        "transactions", help="list, describe, find hanging and abort transactions"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    listing = add_command(actions, "list", list_all, "list all transactional ids and their states")
    listing.add_argument(
        "--state", action="append", type=one_of(STATES), help="only this state; may be repeated"
    )
    describing = add_command(
        actions, "describe", describe, "show the coordinator's state of a transactional id"
    )
    describing.add_argument("--transactional-id", required=True)
    producing = add_command(
        actions,
        "describe-producers",
        describe_producers,
        "show the producers that a partition knows",
    )
    hanging = add_command(
        actions, "find-hanging", find_hanging, "list open transactions that no coordinator knows"
    )
    hanging.add_argument(
        "--max-transaction-timeout",
        type=number(0, INT32_MAX),
        default=TIMEOUT_MINUTES,
        metavar="MINUTES",
        help="age from which an open transaction counts as hanging",
    )
    aborting = add_command(actions, "abort", abort, "abort a hanging transaction of a partition")
    for each, required in ((producing, True), (hanging, False), (aborting, True)):
        each.add_argument("--topic", required=required)
        each.add_argument("--partition", type=number(0, INT32_MAX), required=required)
    int64 = number(0, INT64_MAX)
    aborting.add_argument("--start-offset", type=int64, help="first offset of the transaction")
    aborting.add_argument("--producer-id", type=int64)
    aborting.add_argument(
        "--force",
        action="store_true",
        help="abort it even if its coordinator knows it, and may commit it",
    )
    aborting.add_argument("--producer-epoch", type=number(0, INT16_MAX))
    aborting.add_argument("--coordinator-epoch", type=number(0, INT32_MAX))
    for each in (listing, describing, producing, hanging, aborting):
        each.set_defaults(now_ms=lambda: time.time_ns() // 1_000_000)


def list_all(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return one row a transactional id."""
    found = cluster.client.list_transactions(arguments.state or [])
    rows = [[each.transactional_id, each.producer_id, each.state] for each in found]
    headings = ["TRANSACTIONAL-ID", "PRODUCER-ID", "TRANSACTION-STATE"]
    return Output([Table("transactions", headings, rows)])


def describe(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return one row. Raises Refused for an id that the coordinator does not know."""
    name = arguments.transactional_id
    found = cluster.client.describe_transaction(name)
    if found is None:
        check_code(f"describing transactional id {name!r}", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        raise Refused(name)
    is_open = found.start_time_ms >= 0
    row = [
        name,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        found.start_time_ms if is_open else None,
        arguments.now_ms() - found.start_time_ms if is_open else None,
        [f"{topic}-{number}" for topic, number in found.partitions],
    ]
    headings = ["TRANSACTIONAL-ID", "PRODUCER-ID", "PRODUCER-EPOCH", "TRANSACTION-STATE"]
    headings += ["TRANSACTION-TIMEOUT-MS", "TRANSACTION-START-TIME-MS"]
    headings += ["TRANSACTION-DURATION-MS", "TOPIC-PARTITIONS"]
    return Output([Table("transactions", headings, [row])])


def describe_producers(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return one row a producer that the partition's leader knows."""
    partition = TopicPartition(arguments.topic, arguments.partition)
    rows = [
        [
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp,
            _start_offset(each),
        ]
        for each in _producers(cluster, partition)
    ]
    headings = ["PRODUCER-ID", "PRODUCER-EPOCH", "LATEST-COORDINATOR-EPOCH", "LAST-SEQUENCE"]
    headings += ["LAST-TIMESTAMP", "CURRENT-TRANSACTION-START-OFFSET"]
    return Output([Table("producers", headings, sorted(rows, key=lambda row: row[0]))])


def _start_offset(producer: Message) -> int | None:
    start = int(producer.current_txn_start_offset)
    return None if start == NO_TRANSACTION else start


def _producers(cluster: Cluster, partition: TopicPartition) -> tuple[Message, ...]:
    cluster.check_partition(partition)
    operation = admin.describe_producers(cluster.client.session, partition)
    topic, number = partition
    return cluster.run(operation, f"describing the producers of {topic}-{number}")


def find_hanging(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return open transactions older than the timeout that no coordinator would ever end."""
    if arguments.partition is not None and arguments.topic is None:
        raise UsageError("--partition needs --topic")
    limit_ms = arguments.now_ms() - arguments.max_transaction_timeout * 60_000
    old = [
        each
        for each in _open_transactions(cluster, arguments.topic, arguments.partition)
        if each.producer.last_timestamp <= limit_ms
    ]
    listed = cluster.client.list_transactions() if old else ()
    ids = {each.producer_id: each.transactional_id for each in listed}
    rows: list[list[Any]] = []
    for each in old:
        producer = each.producer
        name = ids.get(producer.producer_id)
        if name is not None and _is_known(cluster, name, each.partition, _numbers(producer)):
            continue
        age_minutes = (arguments.now_ms() - producer.last_timestamp) // 60_000
        row = [*each.partition, producer.producer_id, producer.producer_epoch]
        row += [producer.coordinator_epoch, producer.current_txn_start_offset]
        rows.append([*row, producer.last_timestamp, age_minutes])
    headings = ["TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH"]
    headings += ["START-OFFSET", "LAST-TIMESTAMP", "DURATION-MINUTES"]
    return Output([Table("transactions", headings, rows)])


def _open_transactions(
    cluster: Cluster, topic: str | None, number: int | None
) -> Iterator[OpenTransaction]:
    cluster.load_topics(None if topic is None else [topic])
    partitions = [
        TopicPartition(name, each)
        for name in (cluster.topics() if topic is None else [topic])
        for each in (cluster.partitions(name) if number is None else [number])
    ]
    for done, partition in enumerate(partitions):
        cluster.sign.doing = f"transactions find-hanging: {done} of {len(partitions)} partitions"
        for producer in _producers(cluster, partition):
            if producer.current_txn_start_offset != NO_TRANSACTION:
                yield OpenTransaction(partition, producer)


def _numbers(producer: Message) -> tuple[int, int, int]:
    """Return (producer id, producer epoch, coordinator epoch), as in the producer's marker."""
    # A coordinator that never wrote here has no epoch yet; 0 is the least there is.
    return producer.producer_id, producer.producer_epoch, max(0, producer.coordinator_epoch)


def _is_known(
    cluster: Cluster,
    transactional_id: str,
    partition: TopicPartition,
    numbers: tuple[int, int, int],
) -> bool:
    """Return True if the coordinator has the partition in the transaction of this very producer
    epoch."""
    known = cluster.client.describe_transaction(transactional_id)
    if known is None or known.producer_id != numbers[0]:
        return False
    return known.producer_epoch >= numbers[1] and partition in known.partitions


def abort(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Write one abort marker, chosen by start offset or by the producer's own numbers.

    Refuse a transaction that a coordinator knows: its producer may still commit it, and the records
    of this partition would be missing without a warning. (Kafka's tool does not check.)
    """
    topic, number = partition = TopicPartition(arguments.topic, arguments.partition)
    marker = _marker_ids(cluster, arguments, partition)
    if not arguments.force:
        _refuse_known(cluster, partition, marker)
        cluster.load_topics([topic])  # the leader may be another by now
    cls = APIS[ApiKey.WRITE_TXN_MARKERS].request
    marker_class = cls.WritableTxnMarker
    message = cls(
        markers=[
            marker_class(
                producer_id=marker[0],
                producer_epoch=marker[1],
                coordinator_epoch=marker[2],
                transaction_result=False,
                topics=[
                    marker_class.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])
                ],
            )
        ]
    )
    doing = f"aborting the transaction of producer {marker[0]} in {topic}-{number}"
    answer = cluster.change(message, doing, node=cluster.leader(partition))
    (result,) = answer.markers[0].topics[0].partitions
    check_code(doing, result.error_code)
    headings = ["TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "DONE"]
    return Output([Table("transactions", headings, [[topic, number, *marker[:2], "aborted"]])])


def _refuse_known(
    cluster: Cluster, partition: TopicPartition, marker: tuple[int, int, int]
) -> None:
    for each in cluster.client.list_transactions():
        if each.producer_id == marker[0]:
            name = each.transactional_id
            if _is_known(cluster, name, partition, marker):
                raise Refused(
                    f"the coordinator of {name!r} knows this transaction: its producer or its "
                    "timeout ends it. If you abort it in this partition, the producer may still "
                    "commit it, without these records; --force aborts it"
                )


def _marker_ids(
    cluster: Cluster, arguments: argparse.Namespace, partition: TopicPartition
) -> tuple[int, int, int]:
    """Return (producer id, producer epoch, coordinator epoch). Raises UsageError, Refused."""
    given = (arguments.producer_id, arguments.producer_epoch, arguments.coordinator_epoch)
    if arguments.start_offset is None:
        if None in given:
            raise UsageError(
                "transactions abort needs --start-offset, or all of --producer-id, "
                "--producer-epoch and --coordinator-epoch"
            )
        return given
    if given != (None, None, None):
        raise UsageError("--start-offset excludes --producer-id and the epochs")
    for each in _producers(cluster, partition):
        if each.current_txn_start_offset == arguments.start_offset:
            return _numbers(each)
    topic, number = partition
    raise Refused(
        f"no transaction begins at --start-offset {arguments.start_offset} in {topic}-{number}"
        " - see `transactions describe-producers`"
    )
