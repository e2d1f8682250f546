"""Transactions of four libraries, unchanged from what one writes for Kafka, on both brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.brokers.probe import wait_for
from support.clients.adapter import WAITS, Client, Reader, Record, Writer, params_of, told_by
from support.clients.librdkafka import create_topic, values_of

PARTITIONS = 3
FENCED = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FENCED", "ProducerFenced"}


def numbered(prefix: str, count: int) -> list[str]:
    """Such as ["a-000", "a-001", ...], sorted."""
    return [f"{prefix}-{number:03}" for number in range(count)]


class Copies:
    """Two topics, the first with 30 records, and what copies from one to the other."""

    def __init__(self, client: Client, bootstrap: str, unique: Callable[[str], str]) -> None:
        self.client, self.bootstrap, self.unique = client, bootstrap, unique
        self.target = create_topic(bootstrap, unique("out"), PARTITIONS)

    def writer(self, name: str = "txn", **settings: object) -> Writer:
        """A transactional producer; the id is the same for the same name."""
        return self.client.transactional(self.bootstrap, self.unique(name), **settings)

    def reader(self) -> Reader:
        """A member of the group, on the topic with records, which is made with the first one."""
        if not hasattr(self, "source"):
            self.source = create_topic(self.bootstrap, self.unique("in"), PARTITIONS)
            with self.client.producer(self.bootstrap) as plain:
                plain.send_all(self.source, numbered("in", 30))
        settings = {"isolation_level": "read_committed"}
        made = self.client.consumer(self.bootstrap, self.unique("group"), **settings)
        made.subscribe(self.source)
        return made

    def transform(self, writer: Writer, reader: Reader, records: list[Record]) -> None:
        """Write each record's upper case, and hand the reader's positions to the transaction."""
        for each in records:
            writer.send(self.target, each.value.upper(), each.key)
        positions = {place: reader.position(place) for place in reader.assignment()}
        offsets = {
            place: (at, "naïve ✓ " + "x" * 1000) for place, at in positions.items() if at >= 0
        }
        writer.send_offsets(offsets, reader)

    def committed(self, reader: Reader) -> int:
        """The group's committed offsets, added up; none counts as 0."""
        places = [(self.source, number) for number in range(PARTITIONS)]
        found = [reader.committed(place) for place in places]
        return sum(each[0] for each in found if each is not None)

    def values(self, isolation: str = "read_committed") -> list[str]:
        """Return the values of the output topic, sorted."""
        return values_of(
            self.client.read(self.bootstrap, self.target, PARTITIONS, isolation=isolation)
        )

    def refused(self, call: Callable[[], None]) -> str:
        """The name of the error that a call must end with; librdkafka's says what is to be done."""
        with pytest.raises(Exception) as caught:
            call()
        if self.client.name == "librdkafka":
            error = caught.value.args[0]
            assert error.fatal() or error.txn_requires_abort(), error
        name = self.client.name_of(caught.value)
        assert name is not None, caught.value
        return name


@pytest.fixture
def copies(client, bootstrap, unique) -> Copies:
    """Return a copy job by this library on this broker."""
    return Copies(client, bootstrap, unique)


@told_by(**WAITS)
def test_commit_shows_output_and_consumer_offsets_together(client, copies):
    reader, writer = copies.reader(), copies.writer()
    for _ in range(3):
        writer.begin()
        copies.transform(writer, reader, reader.take(10))
        writer.commit()
    wait_for(copies.values, numbered("IN", 30))
    wait_for(lambda: copies.committed(reader), 30)
    stored = {reader.committed(place) for place in reader.assignment()}
    if client.name != "aiokafka":  # it tells no metadata
        assert {metadata for _, metadata in stored} == {"naïve ✓ " + "x" * 1000}


@told_by(**WAITS)
def test_abort_leaves_no_output_and_no_offsets_and_the_redo_is_exactly_once(copies):
    reader, writer = copies.reader(), copies.writer()
    writer.begin()
    copies.transform(writer, reader, reader.take(30))
    writer.flush()
    writer.abort()
    assert copies.values() == []
    assert copies.values("read_uncommitted") == numbered("IN", 30)
    assert copies.committed(reader) == 0
    reader.close()
    again = copies.reader()
    writer.begin()
    copies.transform(writer, again, again.take(30))
    writer.commit()
    wait_for(copies.values, numbered("IN", 30))
    wait_for(lambda: copies.committed(again), 30)


@told_by(**WAITS)
def test_a_second_producer_with_the_transactional_id_fences_the_first(copies):
    first = copies.writer()
    first.begin()
    first.sent(copies.target, b"zombie", partition=0)
    copies.writer().transact(copies.target, "heir")
    assert copies.refused(first.commit) in FENCED
    wait_for(copies.values, ["heir"])


@told_by(**WAITS)
def test_read_committed_stops_before_the_oldest_open_transaction(client, copies):
    writer, plain = copies.writer(), client.producer(copies.bootstrap)
    plain.sent(copies.target, b"before", partition=0)
    writer.begin()
    writer.sent(copies.target, b"open", partition=0)
    plain.sent(copies.target, b"after", partition=0)
    assert copies.values() == ["before"]

    def seen(isolation: str) -> list[tuple[int, bytes]]:
        found = client.read(copies.bootstrap, copies.target, isolation=isolation)
        return [(each.offset, each.value) for each in found]

    everything = [*enumerate([b"before", b"open", b"after"])]
    assert seen("read_uncommitted") == everything
    writer.commit()
    wait_for(lambda: seen("read_committed"), everything)


@told_by(**WAITS)
def test_a_transaction_that_is_left_alone_times_out_and_its_producer_cannot_commit(client, copies):
    slow = copies.writer(transaction_timeout_ms=1000)
    slow.begin()
    slow.sent(copies.target, b"late", partition=0)
    client.producer(copies.bootstrap).sent(copies.target, b"after", partition=0)
    wait_for(copies.values, ["after"])
    copies.refused(slow.commit)
    assert copies.values() == ["after"]


COUNTS = [pytest.param(*each.values, 50, marks=each.marks) for each in params_of(**WAITS)]
COUNTS += [("librdkafka", 200), pytest.param("librdkafka", 1000, marks=pytest.mark.chaos)]


@pytest.mark.timeout(900)  # a busy machine has three of them a second, on three brokers
@pytest.mark.parametrize(("client", "count"), COUNTS, indirect=["client"])
def test_many_small_transactions_take_two_offsets_each_and_every_third_is_hidden(
    client, copies, count
):
    writer = copies.writer(linger_ms=0)
    for number in range(count):
        writer.transact(copies.target, f"{number:04}", commits=number % 3 != 2)
    kept = [number for number in range(count) if number % 3 != 2]
    wait_for(lambda: len(copies.values()), len(kept))
    seen = client.read(copies.bootstrap, copies.target)
    assert [each.value.decode() for each in seen] == [f"{number:04}" for number in kept]
    # A coordinator that takes over writes a marker again when it cannot know that it was written.
    again = [each.offset - 2 * number for each, number in zip(seen, kept, strict=True)]
    assert again == sorted(again)
    assert again[0] == 0
    assert again[-1] == 0 or "," in copies.bootstrap
