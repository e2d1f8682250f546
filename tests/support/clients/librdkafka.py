"""Small steps with `confluent_kafka` (librdkafka), written as one writes them for Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import NotReady, ports_of, wait_until
from support.raw.raw import Connection
from support.raw.raw_admin import wait_until_served

T = TypeVar("T")
TIMEOUT_S = 600.0
ASK_S = 10.0
"""Timeout of one request to a leader: librdkafka waits that long for one that has been killed."""
SETTINGS = {
    # A client is back soon after its broker is: by default it may wait ten seconds more.
    "reconnect.backoff.max.ms": 500,
}
LEADER_MOVED = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
    KafkaError._TIMED_OUT,
)
"""Errors by which librdkafka says that its broker is no longer the right one: the last two if that
broker has left the cluster's metadata, and if it is down."""
COORDINATOR_MOVED = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
"""Errors that librdkafka hands to a caller who asks for committed offsets while the group's
coordinator moves."""
TRANSACTION_TIMEOUT_MS = 600_000
"""Timeout that ends no transaction before its test does, unless the test is about timeouts."""


@dataclass(frozen=True, order=True)
class Seen:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None
) -> str:
    """Create a topic on all these brokers, wait until it is served, return its name."""
    admin, ports = AdminClient({"bootstrap.servers": bootstrap}), ports_of(bootstrap)
    new = NewTopic(
        topic, num_partitions=partitions, replication_factor=len(ports), config=config or {}
    )
    # Also on a broker that is down: of several one may have been killed.
    admin.create_topics([new], request_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
    wait_served(bootstrap, topic, partitions)
    return topic


def wait_served(bootstrap: str, topic: str, partitions: int) -> None:
    """Return when each of a topic's partitions takes requests at one of these brokers."""
    ports = ports_of(bootstrap)
    wait_until(lambda: _is_served(ports, topic, partitions), f"the leaders of {topic}")


def _is_served(ports: list[int], topic: str, partitions: int) -> bool:
    """Waits for its leaders; False when one of the brokers has gone meanwhile."""
    try:
        with ExitStack() as stack:
            connections = [stack.enter_context(Connection(port)) for port in ports]
            wait_until_served(connections, topic, partitions)
    except (OSError, EOFError):
        return False
    return True


def producer(bootstrap: str, **settings) -> Producer:
    """A producer; underscores in setting names stand for dots."""
    config = {"bootstrap.servers": bootstrap, "linger.ms": 5}
    return Producer(SETTINGS | config | _dotted(settings))


def plain_producer(bootstrap: str, **settings) -> Producer:
    """Return a producer, without idempotence if there is one broker. Of several brokers one may be
    killed, so an unanswered batch must not be written twice."""
    return producer(bootstrap, **({"enable_idempotence": "," in bootstrap} | settings))


def transactional(bootstrap: str, transactional_id: str, **settings) -> Producer:
    """A transactional producer that has called `init_transactions`."""
    settings = {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS} | settings
    made = producer(bootstrap, transactional_id=transactional_id, **settings)
    made.init_transactions(TIMEOUT_S)
    return made


def transact(
    made: Producer, topic: str, *values: str, commits: bool | None = True, partition: int = 0
) -> None:
    """A transaction with these records in one partition; None leaves it open."""
    made.begin_transaction()
    for value in values:
        made.produce(topic, value.encode(), partition=partition)
    assert made.flush(TIMEOUT_S) == 0
    if commits is not None:
        (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)


def consumer(bootstrap: str, group: str, **settings) -> Consumer:
    """A consumer that starts at the earliest offset and does not commit by itself."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 30000,
    }
    if settings.get("group_protocol") == "consumer":
        # The broker has the timeout of sessions then.
        del config["session.timeout.ms"]
    return Consumer(SETTINGS | config | _dotted(settings))


def _dotted(settings: dict) -> dict:
    """Write the names with dots, except those of callbacks."""
    return {n if n.endswith("_cb") else n.replace("_", "."): v for n, v in settings.items()}


def produce_values(
    bootstrap: str, topic: str, values: Iterable[str], partition: int | None = None, **settings
) -> None:
    """Produce and wait for every delivery report; raises the first that failed."""
    made = plain_producer(bootstrap, **settings)
    failures: list[KafkaError] = []

    def report(error, _message):
        if error is not None:
            failures.append(error)

    where = {} if partition is None else {"partition": partition}
    for value in values:
        made.produce(topic, value.encode(), key=value.encode(), on_delivery=report, **where)
    left = made.flush(TIMEOUT_S)
    if failures or left:
        raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))


def read_topic(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", **settings
) -> list[Seen]:
    """Return every record from the earliest offset to the end that this isolation level has now.

    Under read_committed that end is after all committed records, not only after those whose markers
    are written already.
    """
    return sorted(each_record(bootstrap, topic, isolation=isolation, **settings))


def each_record(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", **settings
) -> Iterator[Seen]:
    """The same one by one, in order within each partition."""
    if isolation == "read_committed":
        wait_until_marked(bootstrap)
    made = consumer(
        bootstrap,
        f"reader-{topic}",
        isolation_level=isolation,
        enable_partition_eof=True,
        **settings,
    )
    try:
        partitions = made.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        # A new leader may not know yet what is committed: it says so here, and serves less.
        ends = {number: _end(made, TopicPartition(topic, number)) for number in partitions}
        made.assign([TopicPartition(topic, number, 0) for number in partitions])
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = made.poll(TIMEOUT_S)
            if message is None:
                raise AssertionError(f"{topic}: nothing for {TIMEOUT_S} s, ends seen: {ended}")
            if message.error() is None:
                place = (message.partition(), message.offset())
                yield Seen(*place, message.key(), message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                if message.offset() >= ends[message.partition()]:
                    ended.add(message.partition())
            else:
                raise KafkaException(message.error())
    finally:
        made.close()


def _end(made: Consumer, place: TopicPartition) -> int:
    """The partition's end, from whoever leads it by then."""
    ends = partial(made.get_watermark_offsets, place, ASK_S)
    return of_leader(made, ends, f"the end of {place}")[1]


def of_leader(client: Consumer | AdminClient, ask: Callable[[], T], what: str) -> T:
    """Ask a partition's leader, and ask again if another broker leads by then: only for requests
    that change nothing the second time. KafkaException for every other refusal.

    librdkafka takes the leader from its cache. If that leader was killed and the requests time out,
    it does not look up the new leader (rd_kafka_topic_partition_list_query_leaders_async). So this
    function asks for the metadata in between.
    """
    found: list[T] = []
    failures: list[KafkaException] = []

    def is_found() -> bool:
        try:
            found.append(ask())
        except KafkaException as failed:
            if not failed.args[0].retriable() and failed.args[0].code() not in LEADER_MOVED:
                raise
            failures.append(failed)
            client.list_topics(timeout=TIMEOUT_S)
        return bool(found)

    try:
        wait_until(is_found, what)
    except NotReady as late:
        raise NotReady(f"{late}; the last answer: {failures[-1]}") from None
    return found[0]


class Administrator(AdminClient):
    """Admin client of one broker or of several."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__({"bootstrap.servers": bootstrap})
        self.has_several = len(ports_of(bootstrap)) > 1


def answer_of(admin: Administrator, ask: Callable[[], T], what: str) -> T:
    """Ask an administrator's request. One broker's first answer counts; of several brokers one may
    be killed, and librdkafka hands that error to the caller of some requests, so the request is
    repeated."""
    return of_leader(admin, ask, what) if admin.has_several else ask()


def values_of(seen: Iterable[Seen]) -> list[str]:
    """The values as sorted text."""
    return sorted(each.value.decode() for each in seen if each.value is not None)


def poll_count(subscriber: Consumer, count: int) -> list:
    got: list = []
    while len(got) < count:
        message = subscriber.poll(TIMEOUT_S)
        if message is None:
            raise AssertionError(f"{len(got)} of {count} records, then nothing for {TIMEOUT_S} s")
        if message.error() is not None:
            raise KafkaException(message.error())
        got.append(message)
    return got


def delete_group(admin: AdminClient, group: str) -> None:
    """Delete a group whose last member closed just now: that may not have left it yet."""

    def deleted() -> bool:
        try:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NON_EMPTY_GROUP:
                raise
            return False
        return True

    wait_until(deleted, f"the deletion of {group}")


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """A group's committed offset by partition; those without one are left out."""
    wait_until_marked(bootstrap)
    made = consumer(bootstrap, group)
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    found: dict[int, int] = {}

    def is_answered() -> bool:
        try:
            answers = made.committed(asked, TIMEOUT_S)
        except KafkaException as failed:
            if failed.args[0].code() not in COORDINATOR_MOVED or "," not in bootstrap:
                raise
            return False
        found.update({each.partition: each.offset for each in answers if each.offset >= 0})
        return True

    try:
        wait_until(is_answered, f"the coordinator of {group}")
        return found
    finally:
        made.close()
