"""Small steps with kafka-python, written as one writes them for Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError, TopicAlreadyExistsError
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import wait_until
from support.clients.librdkafka import Seen

# A client is back soon after its broker is: by default it may wait half a minute more.
SETTINGS = {"reconnect_backoff_max_ms": 500}
POLL_MS = 5_000
"""Longer than a broker that died holds up a group's assignment: `poll` ends with the first records,
and one that ends before SyncGroup is answered leaves kafka-python 3.0 waiting until its session is
over."""
TRANSACTION_TIMEOUT_MS = 600_000
"""No transaction of a test is over before the test ends it, unless that is what it is about."""


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> str:
    """Create a topic on one broker, wait for its leaders, return its name."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        options = {"num_partitions": partitions, "replication_factor": 1}
        _create(admin, topic, options, has_several="," in bootstrap)
    finally:
        admin.close()
    return topic


def _create(
    admin: KafkaAdminClient, topic: str, options: dict[str, int], *, has_several: bool
) -> None:
    """Asks again when the connection to one of several brokers is lost: the client does not."""
    try:
        admin.create_topics({topic: options}, wait_for_metadata=True)
    except KafkaConnectionError:
        if not has_several:
            raise
        with suppress(TopicAlreadyExistsError):
            admin.create_topics({topic: options}, wait_for_metadata=True)


def transactional(bootstrap: str, transactional_id: str, **settings) -> KafkaProducer:
    """A transactional producer that has called `init_transactions`."""
    made = KafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=transactional_id,
        **({"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS} | SETTINGS | settings),
    )
    made.init_transactions()
    return made


def consumer(bootstrap: str, group: str | None, *topics: str, **settings) -> KafkaConsumer:
    """A consumer that starts at the earliest offset and does not commit by itself."""
    return KafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        # A member that knows no partitions of a topic assigns none of it until this is over.
        metadata_max_age_ms=1000,
        **(SETTINGS | settings),
    )


def produce_values(bootstrap: str, topic: str, values, **settings) -> None:
    """Produce each value, and wait for all of them."""
    made = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        sent = [made.send(topic, value.encode(), key=value.encode()) for value in values]
        for each in sent:
            each.get(timeout=30)
    finally:
        made.close()


def poll_count(subscriber: KafkaConsumer, count: int) -> list:
    """Poll until at least `count` records came."""
    got: list = []

    def enough() -> bool:
        for records in subscriber.poll(timeout_ms=POLL_MS).values():
            got.extend(records)
        return len(got) >= count

    wait_until(enough, f"{count} records")
    return got


def read_topic(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", **settings
) -> list[Seen]:
    """Every record from the earliest offset to the end that this isolation level has now.

    Under read_committed that is what has been committed, not only what has its markers already.
    Reads again when the connection to one of several brokers is lost: some calls of the client
    end with that.
    """
    try:
        return _read_topic(bootstrap, topic, isolation, settings)
    except KafkaConnectionError:
        if "," not in bootstrap:
            raise
    return _read_topic(bootstrap, topic, isolation, settings)


def _read_topic(
    bootstrap: str, topic: str, isolation: str, settings: Mapping[str, Any]
) -> list[Seen]:
    if isolation == "read_committed":
        wait_until_marked(bootstrap)
    reader = consumer(bootstrap, None, isolation_level=isolation, **settings)
    try:
        places = [TopicPartition(topic, number) for number in reader.partitions_for_topic(topic)]
        reader.assign(places)
        reader.seek_to_beginning(*places)
        ends = reader.end_offsets(places)
        seen: list[Seen] = []

        def ended() -> bool:
            for records in reader.poll(timeout_ms=200).values():
                seen.extend(Seen(one.partition, one.offset, one.key, one.value) for one in records)
            return all(reader.position(place) >= ends[place] for place in places)

        wait_until(ended, f"the ends {ends}")
        return sorted(seen)
    finally:
        reader.close()
