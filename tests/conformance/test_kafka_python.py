"""Calls that only kafka-python has, unchanged, on both brokers."""

from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError
from support.brokers.probe import wait_until
from support.clients.adapter import told_by
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of

pytestmark = told_by("kafka-python")


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """A topic of three partitions with ten records in each."""
    topic = create_topic(bootstrap, unique("topic"), 3)
    for number in range(3):
        produce_values(bootstrap, topic, map(str, range(10)), number)
    return topic


@pytest.mark.no_kill(
    "asked again, kafka-python 3.0 forgets the offsets that it was answered before"
)
@pytest.mark.parametrize("version", [(4, 2), (4, 3)])
def test_a_consumer_that_is_told_the_version_of_its_broker_asks_in_its_newest_versions(
    bootstrap, client, topic, version
):
    reader = client.consumer(bootstrap, api_version=version, max_poll_records=500)
    places = [(topic, number) for number in range(3)]
    assert len(reader.read_to_ends(places)) == 30
    asked = [TopicPartition(*place) for place in places]
    assert reader.made.end_offsets(asked) == dict.fromkeys(asked, 10)
    assert reader.made.beginning_offsets(asked) == dict.fromkeys(asked, 0)


def test_a_commit_succeeds_without_records_that_were_given_up_and_only_their_futures_say_so(
    new_broker, client, unique
):
    """kafka-python does not count an expired record as an error of the transaction."""
    broker = new_broker()
    topic = create_topic(broker.bootstrap_servers, unique("given-up"))
    times = {"delivery_timeout_ms": 3000, "request_timeout_ms": 1500}
    writer = client.transactional(broker.bootstrap_servers, unique("id"), **times)
    writer.begin()
    writer.sent(topic, b"there", partition=0)
    broker.kill()
    given_up = writer.made.send(topic, b"given up", partition=0)
    wait_until(lambda: given_up.is_done, "the end of its time")
    assert isinstance(given_up.exception, KafkaTimeoutError)
    broker.restart()
    writer.commit()
    assert values_of(read_topic(broker.bootstrap_servers, topic)) == ["there"]
