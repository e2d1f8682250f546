"""A broker whose coordinators are called past its handlers, and what a crash anywhere leaves."""

from __future__ import annotations

import copy
import functools
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from support.core.broker_build import BrokerOnDisk, request

from broker_sim.core.coordinator.partition_writer import PartitionMarker
from broker_sim.core.effects import Append, Delete, WriteFile
from broker_sim.core.group.requests import (
    JoinGroup,
    LeavingMember,
    OffsetCommit,
    OffsetToCommit,
    SyncGroup,
    TxnOffsetCommit,
)
from broker_sim.core.log import AppendOrigin
from broker_sim.core.log.offset_checkpoint import CLEANER_FILE, encode_offsets
from broker_sim.core.transaction.log_records import encode_key, encode_value
from broker_sim.core.transaction.metadata import TransactionMetadata
from broker_sim.core.transaction.states import TransactionState
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    decode_marker,
    encode_batch,
    parse_header,
)
from txnlog_kafka.wire.topic_partition import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

NOW_MS = 1_700_000_000_000
STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)
A, B, DATA = (TopicPartition(topic, 0) for topic in ("a", "b", "data"))
FIRST_ID = 1_000
"""The first producer id that is given out."""
CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 3_000,
    # Or most of the time goes by in looking.
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": 2**63 - 1,
    "log.flush.offset.checkpoint.interval.ms": 2**31 - 1,
    "log.flush.scheduler.interval.ms": 2**63 - 1,
    "producer.id.expiration.check.interval.ms": 2**31 - 1,
}


class _LosesAll(random.Random):
    """Random that loses everything that was not flushed."""

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]


@functools.cache
def _prepared(config: tuple[tuple[str, Any], ...]) -> SimDisk:
    """Return a disk with all topics; a producer id of the first block was used, so the next life
    has others."""
    broker = BrokerOnDisk(CONFIG | dict(config))
    broker.find_coordinators()
    for name in ("a", "b", "data"):
        broker.create_topic(name, 2)
    broker.ask(request(ApiKey.INIT_PRODUCER_ID, transactional_id=None), 4)
    return broker.disk


class World(BrokerOnDisk):
    """Broker with one partition for each coordinator, and the topics `a`, `b` and `data`."""

    def __init__(
        self,
        config: dict | None = None,
        *,
        transactions: Sequence[TransactionMetadata | bytes] = (),
        disk: SimDisk | None = None,
        **more: Any,
    ) -> None:
        """`transactions` are what the transaction log has from the beginning, also as batches."""
        self._given = config or {}
        if disk is None:
            disk = copy.deepcopy(_prepared(tuple(self._given.items())))
            more["starts"] = 1
        super().__init__(CONFIG | self._given, disk=disk, **more)
        for each in transactions:
            self.append(STATE, each if isinstance(each, bytes) else preset(each))
        if transactions:
            self.kill()

    @property
    def transactions(self) -> Any:
        return self.parts.transactions

    @property
    def groups(self) -> Any:
        return self.parts.groups

    def call(self, method: Callable, *args: Any, **more: Any) -> Any:
        """Call a method of the core; return its result, or its answer if its last argument is a
        callback."""
        return self.cause(lambda effects: method(*args, effects, **more))

    def told(self, method: Callable, *args: Any, **more: Any) -> list[Any]:
        """The list gets the answer when there is one."""
        answers: list[Any] = []
        self.call(method, *args, lambda answer, _: answers.append(answer), **more)
        return answers

    def tell(self, method: Callable, *args: Any, **more: Any) -> Any:
        """The answer, which does not wait for others."""
        (answer,) = self.told(method, *args, **more)
        return answer

    def crashed(self, *, after: int | None = None, loses_unflushed: bool = False) -> World:
        """A new broker on what the first `after` storage operations left, at the same time."""
        disk = self.disk_after(after)
        boot = self.machine_boot_id
        if loses_unflushed:
            disk.lose_power(_LosesAll())
            boot += " and the next"
        return self._next(disk, boot)

    def _next(self, disk: SimDisk, boot: str) -> World:
        return World(
            self._given, disk=disk, now_ms=self.now_ms, machine_boot_id=boot, starts=self.starts
        )

    def with_log(self, place: TopicPartition, batches: Sequence[bytes]) -> World:
        """A new broker on the same disk, but for the log of the partition: these, compacted."""
        disk, folder = copy.deepcopy(self.disk), f"{place.topic}-{place.partition}"
        for name in disk.list(folder):
            if name != "partition.metadata":
                disk.apply(Delete(f"{folder}/{name}"))
        # Without a gap at its end, as the cleaner leaves a segment.
        end = parse_header(batches[-1]).next_offset if batches else 0
        for base, data in {end: b"", 0: b"".join(batches)}.items():
            disk.apply(Append(f"{folder}/{base:020}.log", 0, data))
        disk.apply(WriteFile(CLEANER_FILE, encode_offsets({place: end})))
        return self._next(disk, self.machine_boot_id)

    def next_uuid(self) -> str:
        """The next one that is drawn."""
        return str(uuid.UUID(int=copy.copy(self.rng).getrandbits(128), version=4))

    # ------------------------------------------------------------------ logs

    def append(self, place: TopicPartition, batch: bytes) -> None:
        """Append a batch straight to the log."""
        origin = AppendOrigin.COORDINATOR
        log, replicas = self.log(*place), self.parts.replicas
        assert self.call(replicas.append, log, batch, origin=origin).error is ErrorCode.NONE

    def stored(self, place: TopicPartition) -> list[bytes]:
        return [bytes(batch) for _, batch in self.log(*place).batches(0)]

    def markers(self, place: TopicPartition) -> list[TransactionMarker]:
        found = [
            decode_marker(batch, 0, header)
            for header, batch in self.log(*place).batches(0)
            if header.is_control
        ]
        return [marker for marker in found if marker is not None]

    def mark(self, *, commit: bool, producer_id: int = 9) -> ErrorCode:
        """The marker is in the log, and the group coordinator told of it; the answer."""
        kind = MarkerType.COMMIT if commit else MarkerType.ABORT
        marker = TransactionMarker(producer_id, 0, kind, 0)
        sent = PartitionMarker(OFFSETS, marker, 0)
        return self.tell(self.parts.markers.append_here, sent)

    # ------------------------------------------------------------------ transactions

    def init(self, name: str | None = "t", timeout_ms: int = 60_000, **more: Any) -> Any:
        return self.tell(self.transactions.init_producer_id, name, timeout_ms, **more)

    def begin(
        self, ids: Any, *places: TopicPartition, version: int = 2, name: str = "t"
    ) -> ErrorCode:
        """AddPartitionsToTxn; `ids` has producer_id and producer_epoch."""
        return self.tell(
            self.transactions.add_partitions,
            name,
            places or (DATA,),
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            client_transaction_version=version,
        )

    def end(self, ids: Any, *, commit: bool, version: int = 2, name: str = "t") -> Any:
        return self.tell(
            self.transactions.end_txn,
            name,
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            committed=commit,
            client_transaction_version=version,
        )

    def produce_in(self, ids: Any, place: TopicPartition = DATA) -> None:
        """Append one transactional batch straight to the log."""
        batch = encode_batch(
            [Record(None, b"v", self.now_ms)],
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        self.append(place, batch)

    def state(self, transactional_id: str = "t") -> str:
        """Kafka's name of the transaction's state."""
        return str(self.transactions.describe(transactional_id).state)

    # ------------------------------------------------------------------ groups

    def commit_offset(
        self, offset: int, group_id: str = "g", topic: str = "in", **more: Any
    ) -> ErrorCode:
        """OffsetCommit of partition 0."""
        asked = OffsetCommit(group_id=group_id, offsets=(OffsetToCommit(topic, 0, offset),), **more)
        return self.tell(self.groups.offset_commit, asked)[topic, 0]

    def commit_pending(
        self, offset: int, producer_id: int = 9, topic: str = "in", **more: Any
    ) -> ErrorCode:
        """TxnOffsetCommit of partition 0."""
        offsets = (OffsetToCommit(topic, 0, offset),)
        asked = TxnOffsetCommit(
            **{"group_id": "g", "producer_epoch": 0} | more,
            producer_id=producer_id,
            offsets=offsets,
        )
        return self.tell(self.groups.txn_offset_commit, asked)[topic, 0]

    def offset(
        self, group_id: str = "g", topic: str = "in", *, stable: bool = False
    ) -> tuple[int, ErrorCode]:
        """OffsetFetch of partition 0: (offset, error)."""
        result = self.groups.offset_fetch(group_id, {topic: [0]}, require_stable=stable)
        return result.offsets[0].committed_offset, result.offsets[0].error

    def offsets(self, group_id: str = "g", *, stable: bool = True) -> Any:
        return self.groups.offset_fetch(group_id, None, require_stable=stable).offsets

    def join(self, group_id: str = "g", **more: Any) -> list[Any]:
        """JoinGroup; the list gets the answer when there is one."""
        fields = {"protocols": (("range", b"sub"),)} | more
        return self.told(self.groups.join_group, JoinGroup(group_id=group_id, **fields))

    def sync(self, group_id: str = "g", **more: Any) -> list[Any]:
        """SyncGroup; the list gets the answer when there is one."""
        return self.told(self.groups.sync_group, SyncGroup(group_id=group_id, **more))

    def heartbeat(
        self, member_id: str, generation_id: int, instance: str | None = None
    ) -> ErrorCode:
        return self.call(
            self.groups.heartbeat, "g", member_id=member_id, generation_id=generation_id,
            group_instance_id=instance,
        )  # fmt: skip

    def leave(self, *members: LeavingMember) -> list[ErrorCode]:
        result = self.tell(self.groups.leave_group, "g", members)
        assert result.error is ErrorCode.NONE
        return [error for _, error in result.members]

    def group_state(self) -> str:
        """State of the group `g`, as Kafka names it."""
        return str(self.groups.describe_group("g").state)


def preset(metadata: TransactionMetadata) -> bytes:
    record = Record(encode_key(metadata.transactional_id), encode_value(metadata, 2), NOW_MS)
    return encode_batch([record])


def build_metadata(state: TransactionState = TransactionState.EMPTY, **more: Any) -> Any:
    """Return the metadata of the transactional id `t`, which producer 5 has with epoch 3."""
    values = {
        "transactional_id": "t", "producer_id": 5, "producer_epoch": 3, "timeout_ms": 1000,
        "state": state, "last_update_ms": 100, "start_ms": 50,
    }  # fmt: skip
    return TransactionMetadata(**values | more)


def contents(group: Any) -> tuple[Any, ...]:
    """Return the whole state of a consumer group."""
    epochs = (group.epoch, group.metadata_hash, group.target_epoch, group.target_ms)
    return epochs, group.members, group.static_members, group.targets, group.regexes, group.owners
