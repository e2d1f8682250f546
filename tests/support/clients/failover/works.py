"""The works with librdkafka, kafka-python or the Java client. `events.py` has what it prints."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from confluent_kafka import KafkaError, KafkaException
from support.clients.adapter import Reader, Writer
from support.clients.failover.events import (
    DELIVERY_TIMEOUT_MS,
    PAUSE_S,
    TRANSACTION_TIMEOUT_MS,
    over,
    run,
    saw,
)
from support.clients.java_client import simple_name
from support.clients.libraries import client_of

LIBRARY, BOOTSTRAP, PRODUCED, TRANSACTED, GROUP, TRANSACTIONAL_ID = sys.argv[1:]
POLL_S = 0.1
DEFAULTS: dict[str, dict[str, Any]] = {
    "librdkafka": {"reconnect_backoff_max_ms": 10_000, "linger_ms": 0},
    "kafka-python": {"reconnect_backoff_max_ms": 30_000},
    "java": {},
}
"""Settings in which the adapters differ from the libraries' defaults."""
SESSIONS = {"librdkafka": {"session_timeout_ms": 45_000}}
LOG = {"logger": logging.getLogger("librdkafka"), "debug": "msg,topic,eos,cgrp,fetch,broker"}
client = client_of(LIBRARY, Path.cwd())


def name(error: Any) -> str:
    """The name of an error, as the library's users know it."""
    if isinstance(error, KafkaException):
        return error.args[0].name()
    if LIBRARY == "java":
        thrown = error.java_exception
        cause = thrown.getCause()
        return simple_name(cause if simple_name(thrown) == "ExecutionException" else thrown)
    return type(error).__name__


def settings(work: str, **more: object) -> dict[str, Any]:
    own = {"bootstrap_servers": BOOTSTRAP} | DEFAULTS[LIBRARY] | more
    if LIBRARY == "librdkafka":

        def told(error: KafkaError) -> None:
            saw(work, error=error.name())

        own |= {"error_cb": told} | LOG
    return own


def writer(work: str, **more: object) -> Writer:
    more |= {"delivery_timeout_ms": DELIVERY_TIMEOUT_MS}
    return client.new_writer(settings(work, **more))


def reader(work: str, group: str | None) -> Reader:
    more = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "max_poll_records": 500}
    own = settings(work, **more | SESSIONS.get(LIBRARY, {}))
    if LIBRARY == "librdkafka":
        own.pop("linger_ms")
    return client.new_reader(group, own)


def anew(work: str, make: Callable[[], Writer], step: Callable[[Writer, int], None]) -> None:
    """Steps with one producer after the other: one that can do no more is replaced."""
    values = itertools.count()
    while not over.is_set():
        made = None
        try:
            made = make()
            while not over.is_set():
                step(made, next(values))
                over.wait(PAUSE_S)
        except Exception as error:
            if client.name_of(error) is None:
                raise
            saw(work, error=name(error), anew=True)
            if made is not None:
                made.close()


def send(made: Writer, value: int) -> None:
    """Send one record, which all replicas acknowledge."""
    made.sent(PRODUCED, str(value), None, 0)
    saw("produce", ok=[value])


def commit(made: Writer, value: int) -> None:
    """A transaction with a record in two partitions. A commit of kafka-python may succeed without
    records that were given up: only their futures say it."""
    try:
        made.begin()
        waits = [made.send(TRANSACTED, str(value), None, number) for number in (0, 1)]
        again(made.commit)
    except Exception as error:
        if not _is_abortable(error):
            raise
        saw("transact", error=name(error))
        again(made.abort)
        return
    try:
        for wait in waits:
            wait()
    except Exception as error:
        saw("transact", error=f"{name(error)} (committed without it)")
    else:
        saw("transact", ok=[value])


def _is_abortable(error: BaseException) -> bool:
    if isinstance(error, KafkaException):
        return error.args[0].txn_requires_abort()
    return client.name_of(error) not in (None, *(["PRODUCER_FENCED"] * (LIBRARY == "java")))


def again(end: Callable[[], None]) -> None:
    """Call until it does not ask to be called again, as librdkafka does."""
    while True:
        try:
            return end()
        except KafkaException as failed:
            if not failed.args[0].retriable() or over.is_set():
                raise
            saw("transact", error=failed.args[0].name())


def read(work: str, group: str | None) -> None:
    """Read the records of `produce` from the first one on; a member of a group commits them."""
    made = reader(work, group)
    if group is None:
        made.assign([(PRODUCED, 0)])
        made.seek((PRODUCED, 0), 0)
    else:
        made.subscribe(PRODUCED)
    while not over.is_set():
        try:
            got = made.poll(POLL_S)
            if got and group is not None:
                made.commit({(PRODUCED, 0): (got[-1].offset + 1, "")})
            if got:
                saw(work, ok=[int(each.value) for each in got])
        except Exception as error:
            if client.name_of(error) is None:
                raise
            saw(work, error=name(error))


if __name__ == "__main__":
    level = logging.DEBUG if LIBRARY == "librdkafka" else logging.INFO
    logging.basicConfig(level=level, stream=sys.stderr)
    plain = {"enable_idempotence": True, "acks": "all"}
    ids = {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
    run(
        [
            partial(anew, "produce", partial(writer, "produce", **plain), send),
            partial(anew, "transact", partial(writer, "transact", **ids), commit),
            partial(read, "consume", None),
            partial(read, "group", GROUP),
        ]
    )
