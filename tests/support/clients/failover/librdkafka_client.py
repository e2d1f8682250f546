"""The works with librdkafka. Run as a program; `events.py` has what it prints."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support.clients.failover.events import (
    DELIVERY_TIMEOUT_MS,
    PAUSE_S,
    TRANSACTION_TIMEOUT_MS,
    over,
    run,
    saw,
)

BOOTSTRAP, PRODUCED, TRANSACTED, GROUP, TRANSACTIONAL_ID = sys.argv[1:]
ANSWER_S = 60.0
LOG = {"logger": logging.getLogger("librdkafka"), "debug": "msg,topic,eos,cgrp,fetch,broker"}


def client(make: Callable, work: str, **settings: object):
    """A client of librdkafka that tells of its errors."""

    def told(error: KafkaError) -> None:
        saw(work, error=error.name())

    names = {name.replace("_", "."): value for name, value in settings.items()}
    return make({"bootstrap.servers": BOOTSTRAP, "error_cb": told} | names | LOG)


def produce() -> None:
    """One record after the other, each acknowledged by all replicas."""
    values = itertools.count()
    while not over.is_set():
        made = client(Producer, "produce", enable_idempotence=True, linger_ms=0,
                      message_timeout_ms=DELIVERY_TIMEOUT_MS)  # fmt: skip
        try:
            while not over.is_set():
                _send(made, next(values))
        except KafkaException as error:
            saw("produce", error=error.args[0].name(), anew=True)


def _send(made: Producer, value: int) -> None:
    ended: list[KafkaError | None] = []
    made.produce(PRODUCED, str(value), partition=0, on_delivery=lambda e, _: ended.append(e))
    while not ended and not over.is_set():
        made.poll(0.05)
    for error in ended:
        if error is not None:
            raise KafkaException(error)
        saw("produce", ok=[value])
    over.wait(PAUSE_S)


def transact() -> None:
    """One transaction after the other, each with a record in two partitions."""
    values = itertools.count()
    while not over.is_set():
        made = client(Producer, "transact", transactional_id=TRANSACTIONAL_ID, linger_ms=0,
                      transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)  # fmt: skip
        try:
            made.init_transactions(ANSWER_S)
            while not over.is_set():
                _commit(made, next(values))
        except KafkaException as error:
            saw("transact", error=error.args[0].name(), anew=True)


def _commit(made: Producer, value: int) -> None:
    try:
        made.begin_transaction()
        for partition in (0, 1):
            made.produce(TRANSACTED, str(value), partition=partition)
        _again(made.commit_transaction)
        saw("transact", ok=[value])
    except KafkaException as failed:
        error = failed.args[0]
        if not error.txn_requires_abort():
            raise
        saw("transact", error=error.name())
        _again(made.abort_transaction)
    over.wait(PAUSE_S)


def _again(end: Callable[[float], None]) -> None:
    """Call until it does not ask to be called again."""
    while True:
        try:
            return end(ANSWER_S)
        except KafkaException as failed:
            if not failed.args[0].retriable() or over.is_set():
                raise
            saw("transact", error=failed.args[0].name())


def consume() -> None:
    """Read what `produce` writes, from the first record."""
    made = client(Consumer, "consume", group_id=f"{GROUP}-unused", enable_auto_commit=False)
    made.assign([TopicPartition(PRODUCED, 0, 0)])
    while not over.is_set():
        _poll(made, "consume")


def group() -> None:
    """The same as the only member of a group, which commits after each record."""
    made = client(Consumer, "group", group_id=GROUP, enable_auto_commit=False,
                  auto_offset_reset="earliest")  # fmt: skip
    made.subscribe([PRODUCED])
    while not over.is_set():
        message = _poll(made, "group", commits=True)
        if message is None:
            continue
        try:
            made.commit(message, asynchronous=False)
            saw("group", ok=[int(message.value())])
        except KafkaException as failed:
            saw("group", error=failed.args[0].name())
    made.close()


def _poll(made: Consumer, work: str, *, commits: bool = False):
    message = made.poll(0.1)
    if message is None:
        return None
    if message.error() is not None:
        saw(work, error=message.error().name())
        return None
    if not commits:
        saw(work, ok=[int(message.value())])
    return message


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    run([produce, transact, consume, group])
