"""confluent_kafka (librdkafka) behind `support.clients.adapter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListConsumerGroupsResult,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from support.clients import librdkafka
from support.clients.adapter import (
    BEGINNING,
    END,
    SHORT_S,
    TIMEOUT_S,
    Admin,
    Client,
    Headers,
    Place,
    Reader,
    Record,
    Sent,
    Told,
    Writer,
)

from txnlog_kafka.wire.error_codes import error_name

NAMES = {
    "max_request_size": "message_max_bytes",
    "fetch_max_wait_ms": "fetch_wait_max_ms",
    "metadata_max_age_ms": "topic_metadata_refresh_interval_ms",
}
"""Settings that are named otherwise here."""


class LibrdkafkaWriter(Writer):
    def __init__(self, bootstrap_servers: str, settings: dict[str, Any]) -> None:
        self.made = librdkafka.producer(bootstrap_servers, **_renamed(settings))
        if "transactional_id" in settings:
            self.made.init_transactions(TIMEOUT_S)

    def send(
        self, topic: str, value: bytes | str | None, key: bytes | None = None,
        partition: int | None = None, headers: Headers = (), timestamp: int | None = None,
    ) -> Callable[[], Sent]:  # fmt: skip
        told: list[tuple[KafkaError | None, Message]] = []
        more = {"headers": list(headers), "timestamp": timestamp, "partition": partition}
        more = {name: given for name, given in more.items() if given is not None}
        self.made.produce(topic, value, key, on_delivery=lambda *both: told.append(both), **more)

        def wait() -> Sent:
            while not told:
                self.made.poll(SHORT_S)
            error, message = told[0]
            if error is not None:
                raise KafkaException(error)
            return Sent(message.offset(), message.timestamp()[1])

        return wait

    def flush(self) -> None:
        assert self.made.flush(TIMEOUT_S) == 0

    def begin(self) -> None:
        self.made.begin_transaction()

    def send_offsets(self, offsets: Mapping[Place, tuple[int, str]], reader: Reader) -> None:
        assert isinstance(reader, LibrdkafkaReader)
        metadata = reader.made.consumer_group_metadata()
        self.made.send_offsets_to_transaction(_offsets(offsets), metadata, TIMEOUT_S)

    def commit(self) -> None:
        self.made.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self.made.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        """Do nothing: the producer has no close, and batches in flight are dropped with it."""


class LibrdkafkaReader(Reader):
    def __init__(self, bootstrap_servers: str, group: str | None, settings: dict[str, Any]) -> None:
        self.group = group
        self._at_once = settings.pop("max_poll_records")
        settings = {"enable_partition_eof": True} | _renamed(settings)
        self.made: Consumer = librdkafka.consumer(bootstrap_servers, group or "none", **settings)
        self._ended: dict[Place, int] = {}

    def subscribe(self, *topics: str, pattern: str | None = None, told: Told | None = None) -> None:
        def tells(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
            return lambda _, places: told and told(what, [(p.topic, p.partition) for p in places])

        self.made.subscribe(
            [pattern] if pattern else list(topics),
            on_assign=tells("assigned"), on_revoke=tells("revoked"), on_lost=tells("lost"),
        )  # fmt: skip

    def assign(self, places: Sequence[Place]) -> None:
        self.made.assign([TopicPartition(*each) for each in places])

    def poll(self, wait_s: float = SHORT_S) -> list[Record]:
        found = []
        for one in self.made.consume(self._at_once, wait_s):
            error, place = one.error(), (one.topic(), one.partition())
            if error is None:
                kind, timestamp = one.timestamp()
                found.append(
                    Record(
                        *place, one.offset(), one.key(), one.value(), timestamp,
                        kind == TIMESTAMP_LOG_APPEND_TIME, one.headers() or [],
                    )
                )  # fmt: skip
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended[place] = one.offset()
            else:
                raise KafkaException(error)
        return found

    def assignment(self) -> set[Place]:
        return {(each.topic, each.partition) for each in self.made.assignment()}

    def position(self, place: Place) -> int:
        """Return the next offset. librdkafka counts markers and aborted records only at the end of
        a partition."""
        (found,) = self.made.position([TopicPartition(*place)])
        return max(found.offset, self._ended.get(place, -1))

    def seek(self, place: Place, offset: int) -> None:
        """Seek; assign a partition anew if it is not being fetched yet."""
        self._ended.pop(place, None)
        offset = {BEGINNING: OFFSET_BEGINNING, END: OFFSET_END}.get(offset, offset)
        where = TopicPartition(*place, offset)
        try:
            self.made.seek(where)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            others = [each for each in self.made.assignment() if each != where]
            self.made.assign([*others, where])

    def committed(self, place: Place) -> tuple[int, str | None] | None:
        (found,) = self.made.committed([TopicPartition(*place)], TIMEOUT_S)
        return None if found.offset < 0 else (found.offset, found.metadata)

    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        given = {} if offsets is None else {"offsets": _offsets(offsets)}
        self.made.commit(**given, asynchronous=False)

    def ends(self, place: Place) -> tuple[int, int]:
        def ask() -> tuple[int, int]:
            return self.made.get_watermark_offsets(TopicPartition(*place), librdkafka.ASK_S)

        return librdkafka.of_leader(self.made, ask, f"the ends of {place}")

    def at_time(self, place: Place, timestamp: int) -> tuple[int, int | None] | None:
        def ask() -> list[TopicPartition]:
            return self.made.offsets_for_times([TopicPartition(*place, timestamp)], TIMEOUT_S)

        (found,) = librdkafka.of_leader(self.made, ask, f"an offset of {place}")
        # It says OFFSET_END for "no record that late".
        return None if found.offset == OFFSET_END else (found.offset, None)

    def close(self) -> None:
        self.made.close()


def _renamed(settings: dict[str, Any]) -> dict[str, Any]:
    return {NAMES.get(name, name): value for name, value in settings.items()}


def _offsets(offsets: Mapping[Place, tuple[int, str]]) -> list[TopicPartition]:
    return [
        TopicPartition(*place, offset, metadata=metadata)
        for place, (offset, metadata) in offsets.items()
    ]


class LibrdkafkaAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self.made = librdkafka.Administrator(bootstrap)

    def _answer(self, ask: Callable[[], dict[Any, Future]]) -> Any:
        """Return the answer about the only item of a request that may be repeated."""
        what = "an administrator's request"
        return librdkafka.answer_of(self.made, lambda: _only(ask()), what)

    def create_topic(
        self, topic: str, partitions: int = 1, replication: int = 1,
        configs: Mapping[str, str] = MappingProxyType({}), *, only_validates: bool = False,
    ) -> None:  # fmt: skip
        new = NewTopic(topic, partitions, replication, config=dict(configs))
        if only_validates:
            self._answer(lambda: self.made.create_topics([new], validate_only=True))
        else:
            _only(self.made.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        _only(self.made.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self.made.list_topics(timeout=TIMEOUT_S).topics)

    def partitions(self, topic: str) -> int:
        return len(self.made.list_topics(topic, TIMEOUT_S).topics[topic].partitions)

    def add_partitions(self, topic: str, count: int, *, only_validates: bool = False) -> None:
        asked = [NewPartitions(topic, count)]
        _only(self.made.create_partitions(asked, validate_only=only_validates))

    def configs(self, topic: str) -> dict[str, tuple[str | None, str]]:
        asked = [ConfigResource(ResourceType.TOPIC, topic)]
        told = self._answer(lambda: self.made.describe_configs(asked))
        return {n: (each.value, ConfigSource(each.source).name) for n, each in told.items()}

    def alter_configs(self, topic: str, *changes: tuple[str, str, str | None]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType[how])
            for name, how, value in changes
        ]
        asked = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)]
        self._answer(lambda: self.made.incremental_alter_configs(asked))

    def delete_records(self, place: Place, before: int) -> int:
        asked = [TopicPartition(*place, before)]
        how = {"request_timeout": librdkafka.ASK_S}
        return self._answer(lambda: self.made.delete_records(asked, **how)).low_watermark

    def offset(self, place: Place, spec: str | int, *, committed: bool = False) -> int:
        """Librdkafka ends with no offset, too, when the leader has not answered in time."""
        wanted = (
            getattr(OffsetSpec, spec)() if isinstance(spec, str) else OffsetSpec.for_timestamp(spec)
        )
        isolation = IsolationLevel(int(committed))

        def ask() -> int:
            asked = {TopicPartition(*place): wanted}
            how = {"isolation_level": isolation, "request_timeout": librdkafka.ASK_S}
            found = _only(self.made.list_offsets(asked, **how)).offset
            if found == OFFSET_INVALID:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))
            return found

        return librdkafka.answer_of(self.made, ask, f"an offset of {place}")

    def group_offsets(self, group: str) -> dict[Place, tuple[int, str]]:
        asked = [ConsumerGroupTopicPartitions(group)]
        told = self._answer(lambda: self.made.list_consumer_group_offsets(asked))
        return {(p.topic, p.partition): (p.offset, p.metadata) for p in told.topic_partitions}

    def move_offsets(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        asked = [ConsumerGroupTopicPartitions(group, _offsets(offsets))]
        told = self._answer(lambda: self.made.alter_consumer_group_offsets(asked))
        for each in told.topic_partitions:
            if each.error is not None:
                raise KafkaException(each.error)

    def groups(self) -> dict[str, str]:
        def ask() -> ListConsumerGroupsResult:
            return self.made.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)

        listed = librdkafka.answer_of(self.made, ask, "the groups")
        return {each.group_id: each.state.name for each in listed.valid}

    def members(self, group: str) -> list[tuple[str, str]]:
        told = self._answer(lambda: self.made.describe_consumer_groups([group])).members
        return [(each.client_id, each.host) for each in told]

    def delete_group(self, group: str) -> None:
        _only(self.made.delete_consumer_groups([group]))

    def addresses(self) -> list[str]:
        told = self.made.describe_cluster().result(TIMEOUT_S)
        return sorted(f"{each.host}:{each.port}" for each in told.nodes)

    def close(self) -> None:
        """Do nothing: the admin client has no close."""


def _only(asked: dict[Any, Future]) -> Any:
    (future,) = asked.values()
    return future.result(TIMEOUT_S)


class Librdkafka(Client):
    name = "librdkafka"

    def new_writer(self, settings: dict[str, Any]) -> Writer:
        return LibrdkafkaWriter(settings.pop("bootstrap_servers"), settings)

    def new_reader(self, group: str | None, settings: dict[str, Any]) -> Reader:
        return LibrdkafkaReader(settings.pop("bootstrap_servers"), group, settings)

    def new_admin(self, bootstrap: str) -> Admin:
        return LibrdkafkaAdmin(bootstrap)

    def name_of(self, error: BaseException) -> str | None:
        if not isinstance(error, KafkaException):
            return None
        found = error.args[0]
        return error_name(found.code()) if found.code() > 0 else found.name()
