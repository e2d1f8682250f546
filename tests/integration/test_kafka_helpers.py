"""Helpers of `LocalCluster`: what is produced is read, by their own words and by another client."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from support.clients.librdkafka import read_topic

from broker_sim import Kafka, LocalCluster
from txnlog_kafka.errors import UnknownTopic


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, id="one broker"),
        pytest.param(3, id="three brokers", marks=pytest.mark.weekly(day=2)),
    ],
)
def kafka(request, tmp_path_factory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("kafka"), brokers=request.param) as cluster:
        yield cluster


def test_rows_of_each_form_are_read_as_they_were_written(kafka, unique):
    topic = unique("forms")
    rows = [
        b"bytes",
        "text",
        None,
        {"id": 1},
        [1, 2],
        ("key", "of a pair"),
        {"key": b"k", "value": {"id": 2}, "headers": {"h": "v"}, "timestamp": 1000},
        {"value": 7, "id": 8},
    ]
    kafka.produce(topic, rows)
    found = kafka.records(topic)
    assert [each.value for each in found] == [
        b"bytes", b"text", None, b'{"id": 1}', b"[1, 2]", b"of a pair", b'{"id": 2}',
        b'{"value": 7, "id": 8}',
    ]  # fmt: skip
    assert found[6].json == {"id": 2}
    assert (found[6].key, found[6].headers, found[6].timestamp) == (b"k", (("h", b"v"),), 1000)
    assert [each.offset for each in found] == list(range(8))
    assert [each.value for each in read_topic(kafka.bootstrap_servers, topic)] == [
        each.value for each in found
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((1, 2, 3), "row 1 is a tuple of 3"),
        ((1, "v"), "row 1 has a key of int"),
        ({1, 2}, "row 1 has a value that JSON cannot say"),
        ({"value": object()}, "row 1 has a value that JSON cannot say"),
    ],
)
def test_a_row_that_is_no_record_is_refused_by_its_number(kafka, unique, row, says):
    with pytest.raises((TypeError, ValueError), match=says):
        kafka.produce(unique("bad"), ["good", row])


def test_more_rows_than_a_batch_holds_are_each_there_once(kafka, unique):
    topic = unique("many")
    kafka.create_topic(topic, partitions=3)
    kafka.produce(topic, [(str(number), "x" * 3_000) for number in range(2_500)])
    found = kafka.records(topic)
    assert {int(each.key) for each in found} == set(range(2_500))
    assert len(found) == 2_500
    assert {each.partition for each in found} == {0, 1, 2}


def test_a_partition_that_is_not_there_is_refused(kafka, unique):
    topic = unique("one")
    kafka.create_topic(topic)
    with pytest.raises(ValueError, match=r"has partitions \[0\], and no 1"):
        kafka.produce(topic, ["row"], partition=1)


def test_records_of_open_and_aborted_transactions_are_seen_uncommitted_alone(kafka, unique):
    topic = unique("transactions")
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for value, ends in (("aborted", producer.abort_transaction), ("open", None)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        if ends is not None:
            ends()
    assert kafka.records(topic) == []
    seen = kafka.records(topic, isolation_level="read_uncommitted")
    assert [each.value for each in seen] == [b"aborted", b"open"]
    producer.commit_transaction()
    assert [each.value for each in kafka.records(topic)] == [b"open"]
    with pytest.raises(ValueError, match="isolation_level='committed'"):
        kafka.records(topic, isolation_level="committed")


def test_groups_say_what_they_have_committed_and_how_far_they_are_behind(kafka, unique):
    topic, group = unique("read"), unique("group")
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, ["a", "b", "c"], partition=1)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[Place(topic, 1, 1), Place(topic, 0, 0)], asynchronous=False)
    consumer.close()
    assert kafka.committed(group) == {(topic, 0): 0, (topic, 1): 1}
    assert kafka.lag(group) == {(topic, 0): 0, (topic, 1): 2}
    assert group in kafka.groups()
    assert kafka.committed("nobody") == {} == kafka.lag("nobody")


def test_expect_gives_what_came_in_the_block(kafka, unique):
    topic = unique("expected")
    kafka.produce(topic, ["before"])
    with kafka.expect(topic, count=2) as new:
        kafka.produce(topic, ["a", "b"])
    assert [each.value for each in new] == [b"a", b"b"]


@pytest.mark.parametrize("count", [1, 3])
def test_expect_fails_for_more_and_for_fewer_and_names_what_came(kafka, unique, count):
    topic = unique("unexpected")
    with (
        pytest.raises(AssertionError, match=f"got 2 records where {count} were expected\n.*b'a'"),
        kafka.expect(topic, count, timeout_s=0.2),
    ):
        kafka.produce(topic, ["a", "b"])


def test_an_unknown_topic_is_an_error_and_not_empty(kafka):
    with pytest.raises(UnknownTopic, match="nowhere"):
        kafka.records("nowhere")


def test_an_address_is_enough_and_goes_to_another_process(kafka, unique):
    topic = unique("elsewhere")
    other = pickle.loads(pickle.dumps(Kafka(kafka.bootstrap_servers)))
    other.produce(topic, ["row"])
    assert topic in other.topics()
    assert len(kafka.records(topic)) == 1


def test_a_broker_that_was_killed_and_started_has_the_rows(tmp_path: Path):
    with LocalCluster(tmp_path) as cluster:
        cluster.produce("orders", ["row"])
        cluster.kill()
        cluster.start()
        assert [each.value for each in cluster.records("orders")] == [b"row"]
