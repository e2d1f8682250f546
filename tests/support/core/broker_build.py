"""A broker of the core on a disk in memory, asked message by message, at any version."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from support.core.core_process import CoreProcess
from support.raw.raw import RawProducer
from support.raw.requests import fetch_request, find_coordinator, produce_request, request

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Send, Start, Stop
from broker_sim.core.log import AppendResult, PartitionLog
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.replica.partition import Partition
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

SMALL = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}
GROUP, TRANSACTION = 0, 1
"""Kinds of keys that have a coordinator."""
TOPIC = 2
"""Type of the resource "topic" in requests about configurations."""


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
    """Broker of the core on a disk in memory; `config` may be that of a cluster's broker."""

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
        """Errors that answer appends to a partition, which are then not carried out: see
        `refuse`."""
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
        self.step(Stop())

    def lose_power(self, seed: int = 1) -> None:
        """Cut the power of the machine, and start it again."""
        self.cut_power(seed)
        self.start()

    def cut_power(self, seed: int = 1) -> None:
        """The machine is down, and what was not flushed lost."""
        self.disk.lose_power(random.Random(seed))
        self.machine_boot_id += "+"

    @property
    def broker(self) -> Broker:
        return self.core

    @property
    def parts(self) -> Any:
        return self.core.parts

    @property
    def membership(self) -> Any:
        return self.core.membership

    @property
    def is_controller(self) -> bool:
        """True if the broker is the controller of a cluster with a registry."""
        return self.is_up and bool(self.membership.controller.is_active)

    def log(self, topic: str = "orders", partition: int = 0) -> PartitionLog:
        """The replica's log, which must be there."""
        log = self.parts.logs.get(topic, partition)
        assert log is not None
        return log

    def partition(self, topic: str = "orders", partition: int = 0) -> Partition:
        return self.parts.replicas.partition(self.log(topic, partition))

    def refuse(self, topic: str, partition: int, error: ErrorCode) -> None:
        """Answer appends to a partition with an error, and append nothing, until `refusals` lacks
        it again."""
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
            answer = self.ask(find_coordinator(key_type, "any"), 4)
            assert answer.coordinators[0].error_code == 0

    def delete_topic(self, name: str) -> int:
        """DeleteTopics for one topic; the error."""
        message = request(ApiKey.DELETE_TOPICS, topic_names=[name], timeout_ms=1000)
        return int(self.ask(message, 5).responses[0].error_code)

    def alter_topic(self, name: str, option: str, value: str | None) -> int:
        """IncrementalAlterConfigs for one topic, which sets; the error."""
        configs = [{"name": option, "value": value}]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        message = request(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
        return int(self.ask(message, 1).responses[0].error_code)

    def producer(self, name: str | None = "t") -> RawProducer:
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


def offset_commit(offset: int = 1, topic: str = "orders", partition: int = 0, **fields: Any) -> Any:
    """An OffsetCommit request of a group `g` without members."""
    place = {"partition_index": partition, "committed_offset": offset}
    topics = [{"name": topic, "partitions": [place]}]
    return request(ApiKey.OFFSET_COMMIT, **{"group_id": "g", "topics": topics} | fields)
