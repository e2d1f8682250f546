"""Consumers of four libraries receive the records that producers of the same library send."""

from __future__ import annotations

import time

import pytest
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import BEGINNING, END, HANGS, Client, told_by
from support.clients.librdkafka import create_topic, values_of

MAX_MESSAGE_BYTES = 1_048_588
FIRST_MS = 1_700_000_000_000
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def numbered(count: int) -> list[str]:
    """Such as ["000", "001", ...], sorted."""
    return [f"{number:03}" for number in range(count)]


@told_by()
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records_come_back_with_their_keys_headers_and_times(
    bootstrap, topic, client, codec
):
    values = [f"{number:03} " + "same " * 20 for number in range(200)]
    settings = {"compression_type": codec} if codec else {}
    with client.producer(bootstrap, linger_ms=20, **settings) as writer:
        for at, value in enumerate(values, FIRST_MS):
            writer.send(topic, value, value.encode(), 0, [("h", b"\1\2")], at)
        writer.flush()
    with client.consumer(bootstrap, max_poll_records=500) as reader:
        got = reader.read_to_ends([(topic, 0)])
    assert [each.value.decode() for each in got] == values
    assert [each.key.decode() for each in got] == values
    assert [each.timestamp for each in got] == [*range(FIRST_MS, FIRST_MS + 200)]
    assert [each.headers for each in got] == [[("h", b"\1\2")]] * 200


@told_by("aiokafka", "librdkafka", "java")
def test_keys_values_headers_and_timestamps_come_back_nulls_too(bootstrap, topic, client):
    headers = [("a", b"1"), ("a", b""), ("b", None)]
    writer = client.producer(bootstrap)
    sent = writer.sent(topic, b"v", b"k", headers=headers, timestamp=FIRST_MS)
    assert (sent.offset, sent.timestamp) == (0, FIRST_MS)
    others = [(b"only a key", None), (None, b""), (None, None), (b"", b"")]
    for key, value in others[: 2 if client.name == "aiokafka" else 4]:
        writer.sent(topic, value, key)
    reader = client.consumer(bootstrap)
    reader.assign([(topic, 0)])
    first, *rest = reader.take(3 if client.name == "aiokafka" else 5)
    assert (first.key, first.value, first.headers) == (b"k", b"v", headers)
    assert (first.timestamp, first.appended) == (FIRST_MS, False)
    assert [(each.key, each.value) for each in rest] == others[: len(rest)]


@told_by()
def test_a_topic_may_take_the_broker_s_time(bootstrap, unique, client):
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = create_topic(bootstrap, unique("times"), config=config)
    before = time.time_ns() // 10**6
    sent = client.producer(bootstrap, compression_type="lz4").sent(topic, b"v", timestamp=1000)
    assert before <= sent.timestamp <= time.time_ns() // 10**6
    reader = client.consumer(bootstrap)
    reader.assign([(topic, 0)])
    (record,) = reader.take(1)
    assert (record.timestamp, record.appended) == (sent.timestamp, True)
    assert reader.at_time((topic, 0), before)[0] == 0


@told_by("aiokafka", "librdkafka", "java")
def test_a_record_as_large_as_the_topic_allows_passes_and_one_larger_is_refused(
    bootstrap, topic, client
):
    largest = MAX_MESSAGE_BYTES - 100
    settings = {"max_request_size": 4 * MAX_MESSAGE_BYTES}
    if client.name == "aiokafka":  # idempotent, it skips the sequence of what was refused
        settings["enable_idempotence"] = False
    writer = client.producer(bootstrap, **settings)
    writer.sent(topic, b"x" * largest)
    refused = client.error_of(lambda: writer.sent(topic, b"y" * (MAX_MESSAGE_BYTES + 1)))
    assert refused == "MESSAGE_TOO_LARGE"
    writer.sent(topic, b"after")
    seen = client.read(bootstrap, topic, max_partition_fetch_bytes=1000)
    assert [len(each.value) for each in seen] == [largest, len(b"after")]


@told_by()
def test_batches_over_the_consumer_s_limits_come_all_the_same_and_a_long_wait_ends(
    bootstrap, topic, client
):
    writer = client.producer(bootstrap)
    for number in range(3):
        writer.sent(topic, f"{number}" + "x" * 200_000)
    for settings in (
        {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1_100_000},
        {"fetch_min_bytes": 10_000_000, "fetch_max_wait_ms": 300},
    ):
        with client.consumer(bootstrap, **settings) as reader:
            reader.assign([(topic, 0)])
            assert [len(each.value) for each in reader.take(3)] == [200_001] * 3


@told_by()
def test_an_idempotent_producer_keeps_the_order_of_many_sends_at_once(bootstrap, topic, client):
    writer = client.producer(bootstrap, enable_idempotence=True, batch_size=100)
    told = writer.send_all(topic, numbered(300))
    assert [each.offset for each in told] == list(range(300))
    assert [each.value.decode() for each in client.read(bootstrap, topic)] == numbered(300)


@told_by("aiokafka", "librdkafka", "java")
@pytest.mark.no_kill("what nobody acknowledges is lost with the broker that it was sent to")
def test_offsets_are_told_by_acks_and_without_any_a_record_arrives(bootstrap, topic, client):
    for number, acks in enumerate((1, "all", 0)):
        with client.producer(bootstrap, acks=acks, enable_idempotence=False) as writer:
            sent = writer.sent(topic, f"{number}", partition=0)
        assert sent.offset == (None if acks == 0 else number)
    wait_for(lambda: values_of(client.read(bootstrap, topic)), ["0", "1", "2"])


@told_by(**HANGS)
def test_positions_commits_and_seeks_agree(bootstrap, topic, client, unique):
    place, group = (topic, 0), unique("group")
    client.producer(bootstrap).send_all(topic, numbered(10))

    def next_of(reader, count: int) -> list[int]:
        return [each.offset for each in reader.take(count)]

    with client.consumer(bootstrap, group) as reader:
        reader.subscribe(topic)
        assert next_of(reader, 4) == [0, 1, 2, 3]
        assert reader.committed(place) is None
        reader.commit()
        assert (reader.position(place), reader.committed(place)[0]) == (4, 4)
        reader.commit({place: (6, "a note")})
        assert reader.committed(place) in [(6, "a note"), (6, None)]
        reader.seek(place, 1)
        assert next_of(reader, 2) == [1, 2]
        reader.seek(place, reader.committed(place)[0])
        assert next_of(reader, 1) == [6]
        reader.seek(place, 8)
        assert next_of(reader, 2) == [8, 9]
        reader.seek(place, BEGINNING)
        assert next_of(reader, 1) == [0]
        reader.seek(place, END)
        wait_until(lambda: not reader.poll() and reader.position(place) == 10, "the end")
    with client.consumer(bootstrap, group) as successor:
        successor.subscribe(topic)
        assert next_of(successor, 1) == [6]


@told_by()
def test_a_position_out_of_range_is_reset_by_the_policy(bootstrap, topic, client):
    client.producer(bootstrap).send_all(topic, numbered(3))
    reader = client.consumer(bootstrap)
    reader.assign([(topic, 0)])
    reader.seek((topic, 0), 1000)
    assert [each.offset for each in reader.take(3)] == [0, 1, 2]


@told_by()
def test_offsets_are_found_by_timestamp_and_at_both_ends(bootstrap, topic, client):
    place, writer = (topic, 0), client.producer(bootstrap)
    for number in range(10):
        writer.sent(topic, f"{number}", timestamp=FIRST_MS + number * 1000)
    reader = client.consumer(bootstrap)
    found = {at: reader.at_time(place, FIRST_MS + at) for at in (-FIRST_MS, 3_500, 60_000)}
    if client.name == "librdkafka":  # it tells no times
        assert found == {-FIRST_MS: (0, None), 3_500: (4, None), 60_000: None}
    else:
        assert found == {-FIRST_MS: (0, FIRST_MS), 3_500: (4, FIRST_MS + 4_000), 60_000: None}
    assert reader.ends(place) == (0, 10)


# kafka-python 3.0 finds the new topic at a time of its own, on Apache Kafka too.
@told_by("aiokafka", "librdkafka", "java", **HANGS)
def test_a_pattern_subscription_takes_in_a_topic_that_is_created_later(bootstrap, client, unique):
    prefix = unique("pattern")
    first, writer = create_topic(bootstrap, f"{prefix}.a"), client.producer(bootstrap)
    writer.sent(first, b"early")
    reader = client.consumer(bootstrap, unique("group"), metadata_max_age_ms=200)
    reader.subscribe(pattern=f"^{prefix}\\..*$")
    assert [(each.topic, each.value) for each in reader.take(1)] == [(first, b"early")]
    reader.commit()
    second = create_topic(bootstrap, f"{prefix}.b", 2)
    wait_until(lambda: not reader.poll() and len(reader.assignment()) == 3, "its partitions")
    writer.sent(second, b"late")
    assert [(each.topic, each.value) for each in reader.take(1)] == [(second, b"late")]


@told_by()
def test_an_unknown_topic_is_created_by_the_first_produce_when_the_broker_may(
    bootstrap, client: Client, unique
):
    topic = unique("auto")
    client.producer(bootstrap).send_all(topic, ["first"])
    assert values_of(client.read(bootstrap, topic)) == ["first"]
