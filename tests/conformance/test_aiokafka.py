"""What only aiokafka does, or has an own call for, unchanged, on both brokers."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import told_by
from support.clients.aiokafka_client import in_loop
from support.clients.librdkafka import values_of

pytestmark = told_by("aiokafka")


def test_an_exception_in_the_transaction_block_aborts(bootstrap, client, topic, unique):
    writer = client.transactional(bootstrap, unique("txn"))

    async def fails() -> None:
        async with writer.made.client.transaction():
            await writer.made.client.send_and_wait(topic, b"first")
            raise ZeroDivisionError

    async def works() -> None:
        async with writer.made.client.transaction():
            await writer.made.client.send(topic, b"next")

    with pytest.raises(ZeroDivisionError):
        in_loop(fails)
    uncommitted = client.read(bootstrap, topic, isolation="read_uncommitted")
    assert values_of(uncommitted) == ["first"]
    assert client.read(bootstrap, topic) == []
    # The same producer goes on: only the second try shows.
    in_loop(works)
    wait_for(lambda: values_of(client.read(bootstrap, topic)), ["next"])


def test_a_consumer_knows_the_last_stable_offset_and_the_high_watermark(
    bootstrap, client, topic, unique
):
    place = TopicPartition(topic, 0)
    writer = client.transactional(bootstrap, unique("txn"))
    for number in range(4):
        writer.transact(topic, f"{number}", commits=number % 2 == 0)
    writer.begin()
    writer.sent(topic, b"open", partition=0)
    client.producer(bootstrap).sent(topic, b"after", partition=0)
    wait_for(lambda: values_of(client.read(bootstrap, topic)), ["0", "2"])
    reader = client.consumer(bootstrap, isolation_level="read_committed")
    reader.assign([(topic, 0)])
    assert [each.value for each in reader.take(2)] == [b"0", b"2"]

    def stable() -> bool:
        assert reader.poll() == []
        return reader.made.last_stable_offset(place) == 8

    wait_until(stable, "the last stable offset")
    assert reader.made.highwater(place) == 10
    writer.commit()
    assert [each.offset for each in reader.take(2)] == [8, 9]


@pytest.mark.no_kill("a plain batch that is sent again is there twice")
def test_what_is_told_of_a_record_and_a_seek_to_what_is_committed(bootstrap, client, topic, unique):
    writer = client.producer(bootstrap)
    sent = writer.made.send_and_wait(topic, b"v", timestamp_ms=1_700_000_000_000)
    assert (sent.offset, sent.timestamp, sent.timestamp_type) == (0, 1_700_000_000_000, 0)
    reader = client.consumer(bootstrap, unique("group"))
    reader.assign([(topic, 0)])
    reader.commit({(topic, 0): (6, "a note")})
    reader.made.seek_to_committed(TopicPartition(topic, 0))
    assert reader.position((topic, 0)) == 6
