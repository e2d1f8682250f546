"""Answers to a producer while its decided transaction waits for a marker."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, request
from support.raw.raw import RawProducer

from broker_sim.core.transaction.add_retries import BACKOFF_MS, RETRIES_MS_MAX
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

TOPIC = "orders"


class Blocked:
    """A producer whose commit is decided, with the marker of partition 0 refused."""

    def __init__(self) -> None:
        self.broker = BrokerOnDisk()
        self.broker.create_topic(TOPIC, 2)
        for key, key_type in (("t", 1), ("g", 0)):
            message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
            self.broker.ask(message, 4)
        self.producer = RawProducer(self, "t", retries=False)
        assert self.producer.init() == "NONE"
        assert self.producer.produce(TOPIC, 0, "a", version=12) == "NONE"
        self.markers = self.broker.broker.parts.markers
        self.append, self.markers.append_marker = self.markers.append_marker, self._refuse
        self.old = self.producer.identity
        assert self.producer.end(commit=True, version=5) == "NONE"

    def ask(self, message: Any, version: int) -> Any:
        """The answer; the broker may ask for its markers until RETRIES_MS_MAX is over."""
        key = self.broker.send(message, version, connection_id=1)
        if key not in self.broker.asked.answers:
            self.broker.advance(RETRIES_MS_MAX + BACKOFF_MS)
        return self.broker.asked.answers[key]

    def _refuse(self, _what, reply, effects) -> None:
        reply(ErrorCode.NOT_ENOUGH_REPLICAS, effects)

    def heal(self) -> None:
        self.markers.append_marker = self.append
        self.broker.advance(100)


@pytest.fixture
def blocked() -> Blocked:
    return Blocked()


@pytest.mark.invariant(29)
def test_the_next_transaction_has_to_wait_and_then_begins(blocked):
    producer = blocked.producer
    assert producer.init(resume=True) == "CONCURRENT_TRANSACTIONS"
    assert producer.add_partitions(TOPIC, 1) == "CONCURRENT_TRANSACTIONS"
    assert producer.add_offsets("g") == "CONCURRENT_TRANSACTIONS"
    assert producer.end(commit=True, version=5) == "CONCURRENT_TRANSACTIONS"
    assert producer.end(commit=False, version=5) == "CONCURRENT_TRANSACTIONS"
    # A client of version 2 knows the code; to an older one a retriable error is said (KIP-890).
    assert producer.produce(TOPIC, 1, "b", version=12) == "CONCURRENT_TRANSACTIONS"
    assert producer.produce(TOPIC, 1, "b", version=11) == "NOT_ENOUGH_REPLICAS"
    for version in (3, 4, 5):
        answer = producer.commit_offset("g", TOPIC, 0, 1, version=version)
        assert answer == "CONCURRENT_TRANSACTIONS"
    blocked.heal()
    assert producer.produce(TOPIC, 1, "b", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"


def test_the_retry_of_the_end_has_to_wait_and_then_gets_its_answer(blocked):
    producer, new = blocked.producer, blocked.producer.identity
    producer.producer_id, producer.producer_epoch = blocked.old
    assert producer.end(commit=True, version=5) == "CONCURRENT_TRANSACTIONS"
    blocked.heal()
    assert producer.end(commit=True, version=5) == "NONE"
    assert producer.identity == new


def test_the_old_epoch_may_still_write_where_its_transaction_is_open(blocked):
    """The marker that ends it there comes after: what the decision covers is what it finds."""
    producer = blocked.producer
    producer.producer_id, producer.producer_epoch = blocked.old
    assert producer.produce(TOPIC, 0, "late", sequence=1, version=12) == "NONE"
    assert producer.produce(TOPIC, 1, "late", version=12) == "CONCURRENT_TRANSACTIONS"
    blocked.heal()
    assert producer.produce(TOPIC, 0, "too late", sequence=2, version=12) == (
        "INVALID_PRODUCER_EPOCH"
    )
