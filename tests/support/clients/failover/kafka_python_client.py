"""The works with kafka-python. Run as a program; `events.py` has what it prints."""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from support.clients.failover.events import (
    DELIVERY_TIMEOUT_MS,
    PAUSE_S,
    TRANSACTION_TIMEOUT_MS,
    over,
    run,
    saw,
)

BOOTSTRAP, PRODUCED, TRANSACTED, GROUP, TRANSACTIONAL_ID = sys.argv[1:]
ANSWER_S = DELIVERY_TIMEOUT_MS / 1000


def name(error: BaseException) -> str:
    """The name of an error's class, as its users know it."""
    return type(error).__name__


def produce() -> None:
    """One record after the other, each acknowledged by all replicas."""
    values = itertools.count()
    while not over.is_set():
        made = KafkaProducer(
            bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )  # fmt: skip
        try:
            while not over.is_set():
                value = next(values)
                made.send(PRODUCED, b"%d" % value, partition=0).get(ANSWER_S)
                saw("produce", ok=[value])
                over.wait(PAUSE_S)
        except KafkaError as error:
            saw("produce", error=name(error), anew=True)
            made.close(timeout=0)


def transact() -> None:
    """One transaction after the other, each with a record in two partitions."""
    values = itertools.count()
    while not over.is_set():
        made = KafkaProducer(
            bootstrap_servers=BOOTSTRAP, transactional_id=TRANSACTIONAL_ID,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )  # fmt: skip
        try:
            made.init_transactions()
            while not over.is_set():
                _commit(made, next(values))
        except KafkaError as error:
            saw("transact", error=name(error), anew=True)
            made.close(timeout=0)


def _commit(made: KafkaProducer, value: int) -> None:
    """A commit may succeed without records that were given up: only their futures say it."""
    try:
        made.begin_transaction()
        sent = [made.send(TRANSACTED, b"%d" % value, partition=partition) for partition in (0, 1)]
        made.commit_transaction()
    except KafkaError as error:
        saw("transact", error=name(error))
        made.abort_transaction()
        return
    failed = [each.exception for each in sent if each.failed()]
    if failed:
        saw("transact", error=f"{name(failed[0])} (committed without it)")
    else:
        saw("transact", ok=[value])
    over.wait(PAUSE_S)


def consume() -> None:
    """Read what `produce` writes, from the first record."""
    made = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    made.assign([TopicPartition(PRODUCED, 0)])
    while not over.is_set():
        values = _poll(made, "consume")
        if values:
            saw("consume", ok=values)


def group() -> None:
    """The same as the only member of a group, which commits what it was given."""
    made = KafkaConsumer(
        PRODUCED, bootstrap_servers=BOOTSTRAP, group_id=GROUP, enable_auto_commit=False,
        auto_offset_reset="earliest",
    )  # fmt: skip
    # Whoever assigns nothing, as it does not know the topic yet, may wait for ever for its second
    # assignment: so seen with Apache Kafka.
    made.partitions_for_topic(PRODUCED)
    while not over.is_set():
        values = _poll(made, "group")
        if not values:
            continue
        try:
            made.commit()
            saw("group", ok=values)
        except KafkaError as error:
            saw("group", error=name(error))


def _poll(made: KafkaConsumer, work: str) -> list[int]:
    try:
        found = made.poll(timeout_ms=100)
    except KafkaError as error:
        saw(work, error=name(error))
        return []
    return [int(record.value) for records in found.values() for record in records]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    run([produce, transact, consume, group])
