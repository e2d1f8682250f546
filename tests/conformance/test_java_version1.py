"""The Java producer on brokers of transaction version 1, as Apache Kafka 3 has it.

There the epoch grows when a producer asks for it (KIP-360), and not with each transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import create_topic
from support.harness.availability import check_available

pytestmark = pytest.mark.kafka

BROKERS = {"broker_sim": SimBroker, "apache_kafka": ApacheKafka}


@pytest.fixture(scope="module", params=BROKERS)
def old_broker(request, tmp_path_factory) -> Iterator[SimBroker | ApacheKafka]:
    """A broker of each kind with transaction version 1."""
    check_available(request.param)
    folder = tmp_path_factory.mktemp(f"{request.param}-1")
    with BROKERS[request.param](folder, transaction_version=1) as broker:
        yield broker


@pytest.fixture
def seen(java, old_broker, unique) -> Callable[..., dict[str, Any]]:
    """Runs a program on a new topic; what it saw."""

    def run(main_class: str, what: str) -> dict[str, Any]:
        topic = create_topic(old_broker.bootstrap_servers, unique(what))
        words = [old_broker.bootstrap_servers, topic, unique(f"{what}-id")]
        return java.ok(main_class, what, *words).json

    return run


def test_a_zombie_producer_is_fenced_by_the_coordinator_too(seen):
    assert seen("ProducerCalls", "zombie") == {
        "send": "InvalidProducerEpochException",
        "commit": "InvalidProducerEpochException",
        "abort": "ProducerFencedException",
        "begin": "ProducerFencedException",
        # A partition is added by a request to the coordinator first.
        "first send": "ProducerFencedException",
        "offsets": "ProducerFencedException",
        "readable": ["heir"],
    }


def test_a_commit_after_the_timeout_fences_the_producer(seen):
    assert seen("ProducerCalls", "timeout") == {
        "epoch grew": True,
        "commit": "ProducerFencedException",
        "abort": "ProducerFencedException",
        "again": "ProducerFencedException",
        "readable": [],
    }


def test_a_send_after_the_timeout_is_refused_and_the_producer_is_fenced(seen):
    assert seen("ProducerCalls", "sendAfterTimeout") == {
        "send": "InvalidProducerEpochException",
        "commit": "InvalidProducerEpochException",
        "abort": "ProducerFencedException",
        "again": "ProducerFencedException",
        "readable": [],
    }


def test_the_producer_bumps_its_epoch_after_an_abortable_error(seen):
    assert seen("ProducerCalls", "abortable") == {
        "send": "RecordTooLargeException",
        "commit": "KafkaException/RecordTooLargeException",
        "epochs": 1,
        "readable": ["kept"],
    }


def test_empty_and_unfinished_transactions_leave_nothing(seen):
    assert seen("ProducerCalls", "edges") == {
        "after an empty commit": "Empty",
        "after close": "IllegalStateException",
        "after init": "Empty",
        "readable": ["flushed 0", "flushed 1", "flushed 2"],
    }


def test_offsets_of_a_transaction_need_the_group_s_present_generation_and_member(seen):
    assert seen("ProducerCalls", "staleGeneration") == {
        "stale": "CommitFailedException",
        "unknown": "CommitFailedException",
        "pending": 0,
        "committed": "7 from the transaction",
    }


def test_the_epoch_stays_over_a_commit(seen):
    found = seen("AdminCalls", "transactions")
    assert found["epoch after"] == 0
    assert found["open"] == "Ongoing true 60000 true"


def test_fence_producers_aborts_the_transaction_and_fences_the_producer(seen):
    assert seen("AdminCalls", "fence") == {
        "commit": "ProducerFencedException",
        "epoch grew": True,
        "readable": [],
    }
