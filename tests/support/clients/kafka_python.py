"""kafka-python behind `support.clients.adapter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    OffsetSpec,
    OffsetTimestamp,
)
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import OffsetAndMetadata
from support.brokers.probe import wait_until
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

SETTINGS = {"reconnect_backoff_max_ms": 500}
"""A client is back soon after its broker is: by default it may wait half a minute more."""


def offset_of(offset: int, metadata: str) -> OffsetAndMetadata:
    """Return the offset without a leader epoch."""
    return OffsetAndMetadata(offset, metadata, -1)


class KafkaPythonWriter(Writer):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.made = KafkaProducer(**SETTINGS | settings)
        if "transactional_id" in settings:
            self.made.init_transactions()

    def send(
        self, topic: str, value: bytes | str | None, key: bytes | None = None,
        partition: int | None = None, headers: Headers = (), timestamp: int | None = None,
    ) -> Callable[[], Sent]:  # fmt: skip
        data = value.encode() if isinstance(value, str) else value
        more = {"partition": partition, "headers": list(headers), "timestamp_ms": timestamp}
        return partial(self.wait, self.made.send(topic, data, key, **more))

    def wait(self, waiting: Any) -> Sent:
        """Wait for the result of a `send`."""
        told = waiting.get(TIMEOUT_S)
        return Sent(told.offset, told.timestamp)

    def flush(self) -> None:
        self.made.flush()

    def begin(self) -> None:
        self.made.begin_transaction()

    def send_offsets(self, offsets: Mapping[Place, tuple[int, str]], reader: Reader) -> None:
        assert isinstance(reader, KafkaPythonReader)
        metadata = reader.made.group_metadata()
        self.made.send_offsets_to_transaction(reader.offsets_of(offsets), metadata)

    def commit(self) -> None:
        self.made.commit_transaction()

    def abort(self) -> None:
        self.made.abort_transaction()

    def close(self) -> None:
        self.made.close(timeout=1)


class Listening:
    def __init__(self, told: Told) -> None:
        self._told = told

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._told("revoked", [(each.topic, each.partition) for each in revoked])

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._told("assigned", [(each.topic, each.partition) for each in assigned])


class _Listener(Listening, ConsumerRebalanceListener):
    pass


class KafkaPythonReader(Reader):
    assignors: ClassVar[dict[str, type]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    listener, place_of, offset_of = _Listener, TopicPartition, staticmethod(offset_of)

    def __init__(self, group: str | None, settings: dict[str, Any]) -> None:
        self.group = group
        self._bootstrap = settings["bootstrap_servers"]
        if "partition_assignment_strategy" in settings:
            chosen = self.assignors[settings["partition_assignment_strategy"]]
            settings["partition_assignment_strategy"] = (chosen,)
        self.made = self.make({"group_id": group} | settings)

    def make(self, settings: dict[str, Any]) -> Any:
        return KafkaConsumer(**SETTINGS | settings)

    def offsets_of(self, offsets: Mapping[Place, tuple[int, str]]) -> dict[Any, Any]:
        return {self.place_of(*place): self.offset_of(*each) for place, each in offsets.items()}

    def subscribe(self, *topics: str, pattern: str | None = None, told: Told | None = None) -> None:
        """Subscribe, and learn the topics' partitions before joining: a leader that does not know
        them assigns no partition, and notices only much later."""
        listener = None if told is None else self.listener(told)
        self.made.subscribe(topics, pattern=pattern, listener=listener)
        for topic in topics:
            wait_until(lambda name=topic: self._knows(name), f"the partitions of {topic}")

    def _knows(self, topic: str) -> bool:
        """True if the partitions are known; False if the asked broker has died, and another one is
        asked next."""
        try:
            return bool(self.made.partitions_for_topic(topic))
        except errors.KafkaConnectionError:
            if "," not in self._bootstrap:
                raise
            return False

    def assign(self, places: Sequence[Place]) -> None:
        self.made.assign([self.place_of(*each) for each in places])

    def poll(self, wait_s: float = SHORT_S) -> list[Record]:
        return self.records_of(self.made.poll(timeout_ms=int(wait_s * 1000)))

    def records_of(self, found: Mapping[Any, list[Any]]) -> list[Record]:
        return [
            Record(
                one.topic, one.partition, one.offset, one.key, one.value, one.timestamp,
                one.timestamp_type == 1, list(one.headers),
            )
            for records in found.values()
            for one in records
        ]  # fmt: skip

    def assignment(self) -> set[Place]:
        return {(each.topic, each.partition) for each in self.made.assignment()}

    def position(self, place: Place) -> int:
        return self.made.position(self.place_of(*place))

    def seek(self, place: Place, offset: int) -> None:
        where = self.place_of(*place)
        ends = {BEGINNING: self.made.seek_to_beginning, END: self.made.seek_to_end}
        if offset in ends:
            ends[offset](where)
        else:
            self.made.seek(where, offset)

    def committed(self, place: Place) -> tuple[int, str | None] | None:
        found = self.made.committed(self.place_of(*place), metadata=True)
        return None if found is None else (found.offset, found.metadata)

    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        self.made.commit(*([] if offsets is None else [self.offsets_of(offsets)]))

    def ends(self, place: Place) -> tuple[int, int]:
        asked = [self.place_of(*place)]
        (first,) = self.made.beginning_offsets(asked).values()
        (end,) = self.made.end_offsets(asked).values()
        return first, end

    def at_time(self, place: Place, timestamp: int) -> tuple[int, int | None] | None:
        (found,) = self.made.offsets_for_times({self.place_of(*place): timestamp}).values()
        return None if found is None else (found.offset, found.timestamp)

    def close(self) -> None:
        self.made.close()


def named(error: Any) -> str:
    """Kafka's name of an error of kafka-python or aiokafka; of their own ones the class's."""
    code = getattr(error, "errno", None)
    return error_name(code) if isinstance(code, int) and code > 0 else type(error).__name__


class KafkaPythonAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self.made = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(
        self, topic: str, partitions: int = 1, replication: int = 1,
        configs: Mapping[str, str] = MappingProxyType({}), *, only_validates: bool = False,
    ) -> None:  # fmt: skip
        counts = {"num_partitions": partitions, "replication_factor": replication}
        asked = {topic: counts | {"configs": dict(configs)}}
        self.made.create_topics(asked, validate_only=only_validates)

    def delete_topic(self, topic: str) -> None:
        self.made.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self.made.list_topics())

    def partitions(self, topic: str) -> int:
        return len(self.made.describe_topics([topic])[0]["partitions"])

    def add_partitions(self, topic: str, count: int, *, only_validates: bool = False) -> None:
        self.made.create_partitions({topic: count}, validate_only=only_validates)

    def configs(self, topic: str) -> dict[str, tuple[str | None, str]]:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        told = self.made.describe_configs([asked], config_filter="all")["topic"][topic]
        return {name: (each["value"], each["config_source"]) for name, each in told.items()}

    def alter_configs(self, topic: str, *changes: tuple[str, str, str | None]) -> None:
        asked = {name: (AlterConfigOp[how], value) for name, how, value in changes}
        self.made.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=asked)])

    def delete_records(self, place: Place, before: int) -> int:
        (told,) = self.made.delete_records({TopicPartition(*place): before}).values()
        return told["low_watermark"]

    def offset(self, place: Place, spec: str | int, *, committed: bool = False) -> int:
        asked = OffsetSpec[spec.upper()] if isinstance(spec, str) else OffsetTimestamp(spec)
        (told,) = self.made.list_partition_offsets(
            {TopicPartition(*place): asked}, isolation_level=IsolationLevel(int(committed))
        ).values()
        return told.offset

    def group_offsets(self, group: str) -> dict[Place, tuple[int, str]]:
        told = self.made.list_group_offsets({group: None})[group]
        return {(at.topic, at.partition): (o.offset, o.metadata) for at, o in told.items()}

    def move_offsets(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        given = {TopicPartition(*place): offset_of(*each) for place, each in offsets.items()}
        for error in self.made.alter_group_offsets(group, given).values():
            if error is not errors.NoError:
                raise error

    def groups(self) -> dict[str, str]:
        return {each["group_id"]: each["group_state"].upper() for each in self.made.list_groups()}

    def members(self, group: str) -> list[tuple[str, str]]:
        told = self.made.describe_groups([group])[group]["members"]
        return [(each["client_id"], each["client_host"]) for each in told]

    def delete_group(self, group: str) -> None:
        (told,) = self.made.delete_groups([group]).values()
        if told != "OK":
            raise getattr(errors, told)

    def addresses(self) -> list[str]:
        told = self.made.describe_cluster()["brokers"]
        return sorted(f"{each['host']}:{each['port']}" for each in told)

    def close(self) -> None:
        self.made.close()


class KafkaPython(Client):
    name = "kafka-python"

    def new_writer(self, settings: dict[str, Any]) -> Writer:
        return KafkaPythonWriter(settings)

    def new_reader(self, group: str | None, settings: dict[str, Any]) -> Reader:
        return KafkaPythonReader(group, settings)

    def new_admin(self, bootstrap: str) -> Admin:
        return KafkaPythonAdmin(bootstrap)

    def name_of(self, error: BaseException) -> str | None:
        return named(error) if isinstance(error, errors.KafkaError) else None
