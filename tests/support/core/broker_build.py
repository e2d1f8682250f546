"""A broker of the core on a disk in memory, asked message by message, at any version."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from support.core.core_process import CoreProcess
from support.raw.raw import RawProducer

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Send, Start, Stop
from broker_sim.core.log import AppendResult, PartitionLog
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.replica.partition import Partition
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

SMALL = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}
GROUP, TRANSACTION = 0, 1
"""Kinds of keys that have a coordinator."""
TOPIC = 2
"""Of the kinds of resources that have options."""


def request(api_key: ApiKey, /, **fields: Any) -> Any:
    """A request message without a version. Structs in it may be dicts of their fields."""
    return _made(KNOWN_APIS[api_key].request, fields)


def _made(made: Any, fields: dict[str, Any]) -> Any:
    kinds = {each.name: each.kind for each in made.STRUCT.fields if each.struct is not None}
    for name in kinds.keys() & fields.keys():
        below, value = getattr(made, kinds[name]), fields[name]
        if isinstance(value, dict):
            fields[name] = _made(below, value)
        elif value is not None:
            fields[name] = [_made(below, v) if isinstance(v, dict) else v for v in value]
    return made(**fields)


def struct(message: Any, struct_name: str, /, **fields: Any) -> Any:
    """A nested struct of a request, found by its class name anywhere below `message`."""
    pending = [message]
    while pending:
        holder = pending.pop()
        found = getattr(holder, struct_name, None)
        if found is not None:
            return found(**fields)
        pending += [
            getattr(holder, field.kind)
            for field in holder.STRUCT.fields
            if field.struct is not None
        ]
    raise LookupError(struct_name)


class BrokerOnDisk(CoreProcess):
    """One broker; `config` may be that of one of a cluster."""

    core: Broker

    def __init__(
        self,
        config: dict | None = None,
        *,
        disk: SimDisk | None = None,
        codecs: Codecs = NO_CODECS,
        send_to_peer: Callable[[Send], None] | None = None,
        now_ms: int = 1_700_000_000_000,
        machine_boot_id: str = "boot",
        starts: int = 0,
    ) -> None:
        """`send_to_peer` is called with each request to another process."""
        super().__init__(disk, now_ms, 1_000, starts)
        if send_to_peer is not None:
            self.send_to_peer = send_to_peer
        self.config = BrokerConfig(SMALL | (config or {}))
        self.node_id = self.config.integer("node.id")
        self.machine_boot_id = machine_boot_id
        self.refusals: dict[tuple[str, int], ErrorCode] = {}
        """What appends to a partition are answered in place of being carried out: see `refuse`."""
        self._codecs = codecs
        self.start()

    def start(self) -> None:
        """Start on what the disk holds, as a new process."""
        # Brokers of one registry that draw the same make topics with the same id.
        number, is_alone = self.starts + 1, not self.config.text("registry.connect")
        self.rng = random.Random(number if is_alone else f"{self.node_id}/{number}")
        broker = Broker(self.config, self.disk, self.rng, codecs=self._codecs)
        self.boot(broker, Start(self.machine_boot_id))

    def kill(self) -> None:
        """SIGKILL and start again."""
        self.start()

    def stop(self) -> None:
        """A clean stop."""
        self.step(Stop())

    def lose_power(self, seed: int = 1) -> None:
        """Of the machine, which starts again."""
        self.cut_power(seed)
        self.start()

    def cut_power(self, seed: int = 1) -> None:
        """The machine is down, and what was not flushed lost."""
        self.disk.lose_power(random.Random(seed))
        self.machine_boot_id += "+"

    @property
    def broker(self) -> Broker:
        """The core."""
        return self.core

    @property
    def parts(self) -> Any:
        """Of the core."""
        return self.core.parts

    @property
    def membership(self) -> Any:
        """How the broker belongs to a cluster."""
        return self.core.membership

    @property
    def is_controller(self) -> bool:
        """Of a cluster with a registry."""
        return self.is_up and bool(self.membership.controller.is_active)

    def log(self, topic: str = "orders", partition: int = 0) -> PartitionLog:
        """The replica's log, which must be there."""
        log = self.parts.logs.get(topic, partition)
        assert log is not None
        return log

    def partition(self, topic: str = "orders", partition: int = 0) -> Partition:
        """The replica."""
        found: Partition = self.parts.replicas.partition(self.log(topic, partition))
        return found

    def refuse(self, topic: str, partition: int, error: ErrorCode) -> None:
        """Until `refusals` has it no more, this process appends nothing there, and says so."""
        self.refusals[topic, partition] = error
        replicas = self.parts.replicas
        replicas.append = self._refusing(type(replicas).append.__get__(replicas))
        replicas.append_marker = self._refusing(type(replicas).append_marker.__get__(replicas))

    def _refusing(self, append: Callable[..., AppendResult]) -> Callable[..., AppendResult]:
        def call(log: PartitionLog, *args: Any, **more: Any) -> AppendResult:
            refusal = self.refusals.get(log.name)
            return append(log, *args, **more) if refusal is None else AppendResult(refusal)

        return call

    # ------------------------------------------------------------------ short forms

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """CreateTopics for one topic; its result."""
        named = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        message = request(ApiKey.CREATE_TOPICS, topics=[topic | {"configs": named}])
        return self.ask(message, 7).topics[0]

    def find_coordinators(self) -> None:
        """Have the internal topics made."""
        for key_type in (GROUP, TRANSACTION):
            message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["any"])
            assert self.ask(message, 4).coordinators[0].error_code == 0

    def delete_topic(self, name: str) -> int:
        """DeleteTopics for one topic; the error."""
        message = request(ApiKey.DELETE_TOPICS, topic_names=[name], timeout_ms=1000)
        return int(self.ask(message, 5).responses[0].error_code)

    def alter_topic(self, name: str, option: str, value: str | None, operation: int = 0) -> int:
        """IncrementalAlterConfigs for one topic, which sets; the error."""
        config = {"name": option, "value": value, "config_operation": operation}
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": [config]}
        message = request(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
        return int(self.ask(message, 1).responses[0].error_code)

    def producer(self, name: str | None = "t") -> RawProducer:
        """A client that is told every answer."""
        return RawProducer(self, name, retries=False)  # type: ignore[arg-type]

    def delete_records(
        self, offset: int, topic: str = "orders", partition: int = 0, version: int = 2
    ) -> tuple[ErrorCode, int]:
        """DeleteRecords for one partition: (error, low watermark)."""
        place = {"partition_index": partition, "offset": offset}
        message = request(ApiKey.DELETE_RECORDS, topics=[{"name": topic, "partitions": [place]}])
        (answer,) = self.ask(message, version).topics
        (result,) = answer.partitions
        assert (answer.name, result.partition_index) == (topic, partition)
        return ErrorCode(result.error_code), result.low_watermark

    def produce(self, topic: str, *values: str, partition: int = 0, version: int = 11) -> Any:
        """Produce one plain batch; the partition's result."""
        records = encode_batch([Record(None, v.encode(), self.now_ms) for v in values])
        return self.produce_bytes({(topic, partition): records}, version=version)[0]

    def produce_bytes(
        self,
        batches: dict[tuple[str, int], bytes | None],
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        version: int = 11,
    ) -> list[Any]:
        """Produce these bytes; the partitions' results in order."""
        answer = self.ask(produce_request(batches, acks, transactional_id), version)
        return [p for topic in answer.responses for p in topic.partition_responses]

    def fetch(self, topic: str, offset: int = 0, *, version: int = 12, **fields: Any) -> Any:
        """Fetch one partition without waiting; its result."""
        answer = self.ask(fetch_request(topic, offset, **{"max_wait_ms": 0} | fields), version)
        return answer.responses[0].partitions[0]


def produce_request(
    batches: dict[tuple[str, int], bytes | None],
    acks: int = -1,
    transactional_id: str | None = None,
) -> Any:
    """A Produce request with these bytes."""
    topics = [
        {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        for (topic, partition), records in batches.items()
    ]
    return request(
        ApiKey.PRODUCE, acks=acks, timeout_ms=1000, transactional_id=transactional_id,
        topic_data=topics,
    )  # fmt: skip


def offset_commit(offset: int = 1, topic: str = "orders", partition: int = 0, **fields: Any) -> Any:
    """An OffsetCommit request of a group `g` without members."""
    place = {"partition_index": partition, "committed_offset": offset}
    topics = [{"name": topic, "partitions": [place]}]
    return request(ApiKey.OFFSET_COMMIT, **{"group_id": "g", "topics": topics} | fields)


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    max_bytes: int = 1 << 20,
    committed: bool = False,
    leader_epoch: int = -1,
    **fields: Any,
) -> Any:
    """A Fetch request for one partition."""
    place = {
        "partition": partition, "current_leader_epoch": leader_epoch, "fetch_offset": offset,
        "partition_max_bytes": max_bytes,
    }  # fmt: skip
    return request(
        ApiKey.FETCH,
        **{"session_epoch": -1} | fields,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        topics=[{"topic": topic, "partitions": [place]}],
    )
