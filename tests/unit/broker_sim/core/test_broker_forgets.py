"""Clients and topics that have gone leave no object in a broker, once Kafka's times are over."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, fetch_request, request
from support.core.churn import CHURN, ORDERS, SESSION_MS
from support.core.object_counts import count_objects, grown

from txnlog_kafka.wire.messages import ApiKey

COUNT = 150
LEAK = 25
"""Number of objects of a type from which on the test reports a leak; the log's segments add a few.
"""
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
GONE_AFTER_MS = {
    "topics": 0,
    "groups": 11 * MINUTE_MS,
    "transactional ids": 7 * DAY_MS + 2 * HOUR_MS,
    "producers": DAY_MS + 11 * MINUTE_MS,
}
"""Time after which each kind is gone: Kafka's defaults, and the time until the next check."""


class Patient:
    """Asks a broker whose answer may come later."""

    def __init__(self, broker: BrokerOnDisk) -> None:
        self.broker = broker

    def ask(self, message: Any, version: int) -> Any:
        key = self.broker.send(message, version)
        while key not in self.broker.asked.answers:
            self.broker.advance(1)
        return self.broker.asked.answers.pop(key)


@pytest.fixture
def broker() -> BrokerOnDisk:
    made = BrokerOnDisk(
        {
            "group.min.session.timeout.ms": SESSION_MS,
            # Or most of the time goes by in looking.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": HOUR_MS,
            "log.cleaner.backoff.ms": HOUR_MS,
            "log.retention.check.interval.ms": HOUR_MS,
            "log.flush.offset.checkpoint.interval.ms": HOUR_MS,
            "log.flush.scheduler.interval.ms": HOUR_MS,
        }
    )
    made.create_topic(ORDERS)
    made.find_coordinators()
    return made


def come(broker: BrokerOnDisk, kind: str, first: int = 0) -> None:
    names = [f"{kind}-{first + number}".replace(" ", "-") for number in range(COUNT)]
    CHURN[kind](Patient(broker), names)


def held(broker: BrokerOnDisk) -> Counter[str]:
    found = count_objects([broker.broker], leave_out=[broker.disk])
    found["files"] = len(broker.disk.list(""))
    found["timers"] = len(broker.timers)
    return found


@pytest.mark.parametrize("kind", CHURN)
def test_what_came_and_went_leaves_nothing(broker, kind):
    come(broker, kind)
    broker.advance(GONE_AFTER_MS[kind])
    before = held(broker)
    come(broker, kind, COUNT)
    broker.advance(GONE_AFTER_MS[kind])
    assert grown(before, held(broker), LEAK) == {}


def test_connections_with_a_fetch_under_way_leave_nothing(broker):
    def connect_and_disconnect(number: int) -> None:
        broker.send(fetch_request(ORDERS, max_wait_ms=2**31 - 1), 12, connection_id=number)
        broker.disconnect(number)

    connect_and_disconnect(1000)
    before = held(broker)
    for number in range(COUNT):
        connect_and_disconnect(2000 + number)
    assert grown(before, held(broker), LEAK) == {}


def test_producers_and_transactional_ids_are_kept_for_as_long_as_kafka_keeps_them(broker):
    def kept() -> tuple[int, int]:
        listed = broker.ask(request(ApiKey.LIST_TRANSACTIONS), 0)
        return len(broker.log().producers()), len(listed.transaction_states)

    come(broker, "transactional ids")
    broker.advance(DAY_MS - MINUTE_MS)
    assert kept() == (COUNT, COUNT)
    broker.advance(11 * MINUTE_MS)
    assert kept() == (0, COUNT)
    broker.advance(6 * DAY_MS - HOUR_MS)
    assert kept() == (0, COUNT)
    broker.advance(3 * HOUR_MS)
    assert kept() == (0, 0)
