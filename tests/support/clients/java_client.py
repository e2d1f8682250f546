"""Apache Kafka's Java client behind `support.clients.adapter`, called through py4j."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from py4j import java_gateway, protocol
from py4j.protocol import Py4JJavaError
from support.clients.adapter import (
    BEGINNING,
    END,
    SHORT_S,
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
from support.kafka.java_tools import JavaHost

ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
SERIALIZATION = "org.apache.kafka.common.serialization.ByteArray"


class Java(Client):
    """The library, and what its adapters call of it; `own` has the packages that the tests name."""

    name = "java"

    def __init__(self, host: JavaHost) -> None:
        super().__init__()
        self.java = host.java
        self.own = self.java.org.apache.kafka.clients
        self.common = self.java.org.apache.kafka.common
        self.record = self.own.producer.ProducerRecord
        self._millis = self.java.java.time.Duration.ofMillis
        # A Spark session in this process has put its own there, which knows its own JVM's classes.
        self._replaced = java_gateway.get_return_value
        java_gateway.get_return_value = protocol.get_return_value

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        java_gateway.get_return_value = self._replaced

    def new_writer(self, settings: dict[str, Any]) -> Writer:
        return JavaWriter(self, settings)

    def new_reader(self, group: str | None, settings: dict[str, Any]) -> Reader:
        return JavaReader(self, group, settings)

    def new_admin(self, bootstrap: str) -> Admin:
        return JavaAdmin(self, bootstrap)

    def name_of(self, error: BaseException) -> str | None:
        if not isinstance(error, Py4JJavaError):
            return None
        thrown = _cause(error.java_exception)
        kafkas = self.common.protocol.Errors.forException(thrown).name()
        return simple_name(thrown) if kafkas == "UNKNOWN_SERVER_ERROR" else kafkas

    def thrown_by(self, call: Callable[[], object]) -> str:
        """The class of what a call throws, and of its cause, if there is one; or "none"."""
        try:
            call()
        except Py4JJavaError as error:
            thrown = error.java_exception
            cause = thrown.getCause()
            if simple_name(thrown) == "ExecutionException":
                return simple_name(cause)
            return "/".join(simple_name(each) for each in (thrown, cause) if each is not None)
        return "none"

    def place(self, place: Place) -> Any:
        return self.common.TopicPartition(*place)

    def seconds(self, seconds: float) -> Any:
        return self._millis(int(seconds * 1000))

    def offsets(self, offsets: Mapping[Place, tuple[int, str]]) -> dict[Any, Any]:
        made = self.own.consumer.OffsetAndMetadata
        return {self.place(place): made(*each) for place, each in offsets.items()}


def simple_name(thrown: Any) -> str:
    return thrown.getClass().getSimpleName()


def _cause(thrown: Any) -> Any:
    wrapped = simple_name(thrown) in ("ExecutionException", "KafkaException")
    return _cause(thrown.getCause()) if wrapped and thrown.getCause() is not None else thrown


def dotted(settings: Mapping[str, Any]) -> dict[str, str]:
    words = {True: "true", False: "false"}
    return {
        name.replace("_", "."): words.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
        for name, value in settings.items()
    }


class JavaWriter(Writer):
    def __init__(self, client: Java, settings: dict[str, Any]) -> None:
        self._client = client
        serializers = {
            f"{which}_serializer": f"{SERIALIZATION}Serializer" for which in ("key", "value")
        }
        self.made = client.own.producer.KafkaProducer(dotted(serializers | settings))
        if "transactional_id" in settings:
            self.made.initTransactions()

    def send(
        self, topic: str, value: bytes | str | None, key: bytes | None = None,
        partition: int | None = None, headers: Headers = (), timestamp: int | None = None,
    ) -> Callable[[], Sent]:  # fmt: skip
        data = value.encode() if isinstance(value, str) else value
        header = self._client.common.header.internals
        more = [header.RecordHeader(name, each) for name, each in headers] or None
        record = self._client.record(topic, partition, timestamp, key, data, more)
        waiting = self.made.send(record)

        def wait() -> Sent:
            told = waiting.get()
            return Sent(told.offset() if told.hasOffset() else None, told.timestamp())

        return wait

    def flush(self) -> None:
        self.made.flush()

    def begin(self) -> None:
        self.made.beginTransaction()

    def send_offsets(self, offsets: Mapping[Place, tuple[int, str]], reader: Reader) -> None:
        assert isinstance(reader, JavaReader)
        given = self._client.offsets(offsets)
        self.made.sendOffsetsToTransaction(given, reader.made.groupMetadata())

    def commit(self) -> None:
        self.made.commitTransaction()

    def abort(self) -> None:
        self.made.abortTransaction()

    def close(self) -> None:
        self.made.close(self._client.seconds(0))


class JavaReader(Reader):
    def __init__(self, client: Java, group: str | None, settings: dict[str, Any]) -> None:
        self.group = group
        self._client = client
        self._told: Told | None = None
        self._listener = client.java.Told()
        self._json = client.java.Told.json
        if "partition_assignment_strategy" in settings:
            chosen = ASSIGNORS[settings["partition_assignment_strategy"]]
            name = f"org.apache.kafka.clients.consumer.{chosen}"
            settings["partition_assignment_strategy"] = name
        deserializer = f"{SERIALIZATION}Deserializer"
        settings |= {"key_deserializer": deserializer, "value_deserializer": deserializer}
        settings |= {} if group is None else {"group_id": group}
        self.made = client.own.consumer.KafkaConsumer(dotted(settings))

    def subscribe(self, *topics: str, pattern: str | None = None, told: Told | None = None) -> None:
        self._told = told
        compiled = pattern and self._client.java.java.util.regex.Pattern.compile(pattern)
        self.made.subscribe(compiled or list(topics), self._listener)

    def assign(self, places: Sequence[Place]) -> None:
        self.made.assign([self._client.place(each) for each in places])

    def poll(self, wait_s: float = SHORT_S) -> list[Record]:
        rows = self._json(self.made.poll(self._client.seconds(wait_s)))
        for line in self._listener.take().splitlines():
            what, *names = line.split()
            places = [
                (topic, int(number)) for topic, _, number in (n.rpartition("-") for n in names)
            ]
            if self._told is not None:
                self._told(what, places)
        return [_record(each) for each in json.loads(rows)]

    def assignment(self) -> set[Place]:
        return {(each.topic(), each.partition()) for each in self.made.assignment()}

    def position(self, place: Place) -> int:
        return self.made.position(self._client.place(place))

    def seek(self, place: Place, offset: int) -> None:
        where = self._client.place(place)
        ends = {BEGINNING: self.made.seekToBeginning, END: self.made.seekToEnd}
        if offset in ends:
            ends[offset]([where])
        else:
            self.made.seek(where, offset)

    def committed(self, place: Place) -> tuple[int, str | None] | None:
        (found,) = self.made.committed({self._client.place(place)}).values()
        return None if found is None else (found.offset(), found.metadata())

    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        self.made.commitSync(*([] if offsets is None else [self._client.offsets(offsets)]))

    def generation(self) -> int | None:
        return self.made.groupMetadata().generationId()

    def ends(self, place: Place) -> tuple[int, int]:
        asked = [self._client.place(place)]
        (first,) = self.made.beginningOffsets(asked).values()
        (end,) = self.made.endOffsets(asked).values()
        return first, end

    def at_time(self, place: Place, timestamp: int) -> tuple[int, int | None] | None:
        when = self._client.java.Told.when(self._client.place(place), timestamp)
        (found,) = self.made.offsetsForTimes(when).values()
        return None if found is None else (found.offset(), found.timestamp())

    def close(self) -> None:
        self.made.close()


class JavaAdmin(Admin):
    def __init__(self, client: Java, bootstrap: str) -> None:
        self._client, self._types = client, client.own.admin
        self.made = self._types.Admin.create(dotted({"bootstrap_servers": bootstrap}))

    def create_topic(
        self, topic: str, partitions: int = 1, replication: int = 1,
        configs: Mapping[str, str] = MappingProxyType({}), *, only_validates: bool = False,
    ) -> None:  # fmt: skip
        new = self._types.NewTopic(topic, partitions, replication).configs(dict(configs))
        options = self._types.CreateTopicsOptions().validateOnly(only_validates)
        self.made.createTopics([new], options).all().get()

    def delete_topic(self, topic: str) -> None:
        self.made.deleteTopics([topic]).all().get()

    def topics(self) -> set[str]:
        return set(self.made.listTopics().names().get())

    def partitions(self, topic: str) -> int:
        told = self.made.describeTopics([topic]).allTopicNames().get()
        return len(told[topic].partitions())

    def add_partitions(self, topic: str, count: int, *, only_validates: bool = False) -> None:
        options = self._types.CreatePartitionsOptions().validateOnly(only_validates)
        asked = {topic: self._types.NewPartitions.increaseTo(count)}
        self.made.createPartitions(asked, options).all().get()

    def resource(self, topic: str) -> Any:
        made = self._client.common.config.ConfigResource
        return made(made.Type.TOPIC, topic)

    def configs(self, topic: str) -> dict[str, tuple[str | None, str]]:
        asked = self.resource(topic)
        told = self.made.describeConfigs([asked]).all().get()[asked]
        return {
            each.name(): (each.value(), each.source().name()) for each in told.entries().iterator()
        }

    def alter_configs(self, topic: str, *changes: tuple[str, str, str | None]) -> None:
        of = self._types.AlterConfigOp
        entry = self._types.ConfigEntry
        asked = [of(entry(name, value), getattr(of.OpType, how)) for name, how, value in changes]
        self.made.incrementalAlterConfigs({self.resource(topic): asked}).all().get()

    def delete_records(self, place: Place, before: int) -> int:
        where = self._client.place(place)
        asked = {where: self._types.RecordsToDelete.beforeOffset(before)}
        told = self.made.deleteRecords(asked).lowWatermarks()[where]
        return told.get().lowWatermark()

    def offset(self, place: Place, spec: str | int, *, committed: bool = False) -> int:
        specs, levels = self._types.OffsetSpec, self._client.common.IsolationLevel
        named = {"earliest": specs.earliest, "latest": specs.latest}
        named |= {"max_timestamp": specs.maxTimestamp, "earliest_local": specs.earliestLocal}
        wanted = named[spec]() if isinstance(spec, str) else specs.forTimestamp(spec)
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        options, where = self._types.ListOffsetsOptions(level), self._client.place(place)
        return self.made.listOffsets({where: wanted}, options).partitionResult(where).get().offset()

    def group_offsets(self, group: str) -> dict[Place, tuple[int, str]]:
        told = self.made.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        return {(p.topic(), p.partition()): (o.offset(), o.metadata()) for p, o in told.items()}

    def move_offsets(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        self.made.alterConsumerGroupOffsets(group, self._client.offsets(offsets)).all().get()

    def groups(self) -> dict[str, str]:
        told = self.made.listGroups().all().get().iterator()
        return {each.groupId(): each.groupState().get().name() for each in told}

    def members(self, group: str) -> list[tuple[str, str]]:
        told = self.made.describeConsumerGroups([group]).all().get()[group].members()
        return [(each.clientId(), each.host()) for each in told]

    def delete_group(self, group: str) -> None:
        self.made.deleteConsumerGroups([group]).all().get()

    def addresses(self) -> list[str]:
        told = self.made.describeCluster().nodes().get().iterator()
        return sorted(f"{each.host()}:{each.port()}" for each in told)

    def close(self) -> None:
        self.made.close()


def _record(row: list[Any]) -> Record:
    topic, partition, offset, key, value, timestamp, appended, headers = row
    pairs = [(name, _bytes(each)) for name, each in headers]
    return Record(topic, partition, offset, _bytes(key), _bytes(value), timestamp, appended, pairs)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
