"""Errors of real brokers name the values that did not fit, and the client that blocks progress."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from support.clients.librdkafka import TIMEOUT_S, consumer, create_topic, transactional

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.calls import fetch_broker_config
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.offsets import fetch_committed
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.operations.transaction import init_producer_id
from txnlog_spark.errors import DeadlineExceeded, FatalError

pytestmark = pytest.mark.live


def test_a_transaction_timeout_over_the_brokers_is_told_with_both_values(
    broker, unique: Callable[[str], str]
) -> None:
    with Client(broker.bootstrap_servers) as client, pytest.raises(FatalError) as caught:
        client.run(init_producer_id(client.session, unique("t"), 1_800_000))
    text = str(caught.value)
    assert "INVALID_TRANSACTION_TIMEOUT" in text
    assert "transaction.timeout.ms=1800000" in text
    assert "transaction.max.timeout.ms=900000" in text


def test_a_config_of_a_broker_is_had_by_its_name(broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.run(refresh_metadata(client.session, ()))
        found = client.run(fetch_broker_config(client.session, "transaction.max.timeout.ms"))
        missing = client.run(fetch_broker_config(client.session, "no.such.name"))
    assert (found, missing) == ("900000", None)


def test_offsets_pending_by_another_transactional_id_are_told(
    broker, unique: Callable[[str], str]
) -> None:
    topic, group = create_topic(broker.bootstrap_servers, unique("in")), unique("group")
    holder = transactional(broker.bootstrap_servers, unique("other"))
    member = consumer(broker.bootstrap_servers, group)
    holder.begin_transaction()
    holder.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 5)], member.consumer_group_metadata(), TIMEOUT_S
    )
    with Client(broker.bootstrap_servers) as client:
        client.run(fetch_committed(client.session, group, require_stable=False))
        client.session.config = SessionConfig(operation_timeout_ms=2_000)
        with pytest.raises(DeadlineExceeded) as caught:
            client.run(fetch_committed(client.session, group, partitions=[(topic, 0)]))
    assert "UNSTABLE_OFFSET_COMMIT" in str(caught.value)
    assert "maybe of another transactional id" in str(caught.value)
    holder.abort_transaction(TIMEOUT_S)
    member.close()
