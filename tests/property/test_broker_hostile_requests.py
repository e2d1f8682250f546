"""Requests that decode but make no sense: always an answer, never a failure of the broker."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.broker_build import BrokerOnDisk
from support.core.message_build import any_request

from txnlog_kafka.wire.messages import APIS

SPOKEN = [*APIS]


def failures(broker: BrokerOnDisk) -> list[str]:
    """Return the exceptions that handlers raised, from the traces."""
    return [
        str(trace.fields)
        for step in broker.steps
        for trace in step.traces
        if trace.kind == "request-failed"
    ]


@pytest.mark.invariant(42)
@pytest.mark.parametrize("key", SPOKEN, ids=lambda key: key.name)
def test_any_field_values_are_answered_and_change_nothing_that_recovery_cannot_read(key):
    rng = random.Random(f"hostile/{key.name}")
    broker = BrokerOnDisk()
    broker.create_topic("orders", 2)
    broker.produce("orders", "kept")
    for number in range(300):
        message, version = any_request(rng, APIS[key])
        broker.send(message, version, connection_id=number)
    broker.advance(700_000)
    assert failures(broker) == []
    broker.kill()
    if key.name != "DELETE_TOPICS":
        assert broker.fetch("orders").high_watermark >= 1


@settings(max_examples=30)
@given(st.integers(min_value=0, max_value=2**32))
def test_any_sequence_of_requests_leaves_a_broker_that_recovers(seed):
    rng = random.Random(seed)
    broker = BrokerOnDisk()
    broker.create_topic("orders", 2)
    for number in range(60):
        message, version = any_request(rng)
        broker.send(message, version, connection_id=number % 5)
        if rng.random() < 0.1:
            broker.advance(rng.choice((10, 5_000, 60_000)))
        if rng.random() < 0.05:
            broker.kill()
    assert failures(broker) == []
    broker.kill()
    assert broker.create_topic("afterwards").error_code == 0
