"""Both coordinators on logs in memory: a broker of a few lines that can refuse, crash and wait.

Every storage operation is kept in order, so that a test can say what a crash after any of them
leaves behind: `World.crashed(after=n)` is a new broker on the first n operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.partition_writer import PartitionMarker
from broker_sim.core.effects import Append, Effects, Flush, SetTimer, StorageOperation
from broker_sim.core.group import GroupCoordinator
from broker_sim.core.group.requests import JoinGroup, OffsetCommit, OffsetToCommit, SyncGroup
from broker_sim.core.log import AppendResult
from broker_sim.core.transaction import TransactionCoordinator
from broker_sim.core.transaction.log_records import encode_key, encode_value
from broker_sim.core.transaction.metadata import TransactionMetadata
from txnlog_kafka.wire import records
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.records import BatchHeader, MarkerType, Record, TransactionMarker

NOW_MS = 1_700_000_000_000
ONE_PARTITION = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
ONE = BrokerConfig(ONE_PARTITION)
ONE_V1 = BrokerConfig(ONE_PARTITION | {"transaction.version": 1})
COORDINATED = ("__transaction_state", "__consumer_offsets")


@dataclass
class MemoryLog:
    """A partition as a list of batches."""

    path: str
    leader_epoch: int = 0
    log_start_offset: int = 0
    next_offset: int = 0
    stored: list[bytes] = field(default_factory=list)
    size: int = 0
    is_dirty: bool = False

    def add(self, data: bytes) -> int:
        """Append one batch; its base offset."""
        batch = bytearray(data)
        base_offset = self.next_offset
        records.stamp_offsets(batch, 0, base_offset=base_offset, leader_epoch=self.leader_epoch)
        self.next_offset += records.parse_header(batch).last_offset_delta + 1
        self.stored.append(bytes(batch))
        self.size += len(batch)
        self.is_dirty = True
        return base_offset

    def batches(self, start_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        for batch in self.stored:
            header = records.parse_header(batch)
            if header.next_offset > start_offset:
                yield header, batch

    def flush_paths(self) -> tuple[str, ...]:
        return (self.path,) if self.is_dirty else ()

    def flushed(self, _effects: Effects) -> None:
        self.is_dirty = False

    def markers(self) -> list[TransactionMarker]:
        """The control batches, in order."""
        found = [
            records.decode_marker(batch, 0, header)
            for header, batch in self.batches(0)
            if header.is_control
        ]
        return [marker for marker in found if marker is not None]

    def open_producers(self) -> set[int]:
        """Producers with a transaction that is not decided here."""
        producers: set[int] = set()
        for header, _ in self.batches(0):
            if header.is_control:
                producers.discard(header.producer_id)
            elif header.is_transactional:
                producers.add(header.producer_id)
        return producers


class MemoryHost:
    """The broker around the coordinators. `refusals` say what the next appends answer."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        self.refusals: dict[tuple[str, int], ErrorCode] = {}
        self.groups: GroupCoordinator | None = None
        self.next_block = 1000
        self.has_blocks = True
        self.block_size = 1000
        self.uuids = itertools.count(1)
        for topic in COORDINATED:
            self.create(topic, 0)

    @classmethod
    def holding(cls, *transactions: TransactionMetadata) -> MemoryHost:
        """A broker whose transaction log has these values."""
        host = cls()
        for metadata in transactions:
            record = Record(
                encode_key(metadata.transactional_id), encode_value(metadata, 2), NOW_MS
            )
            host.logs["__transaction_state", 0].add(records.encode_batch([record]))
        return host

    def create(self, topic: str, partition: int) -> MemoryLog:
        """A new, empty partition."""
        log = self.logs[topic, partition] = MemoryLog(f"{topic}-{partition}")
        return log

    def log(self, topic: str, partition: int) -> MemoryLog | None:
        return self.logs.get((topic, partition))

    def append(
        self, topic: str, partition: int, data: bytes, effects: Effects, *, guard: int | None = None
    ) -> AppendResult:
        del guard
        refusal = self.refusals.get((topic, partition), ErrorCode.NONE)
        log = self.logs.get((topic, partition))
        if refusal is not ErrorCode.NONE or log is None:
            return AppendResult(refusal or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        effects.storage.append(Append(log.path, log.size, data))
        base_offset = log.add(data)
        return AppendResult(
            ErrorCode.NONE, base_offset=base_offset, last_offset=log.next_offset - 1
        )

    def when_committed(
        self, topic: str, partition: int, last_offset: int, reply: Callable, effects: Effects
    ) -> None:
        """At once: there is one replica."""
        assert last_offset < self.logs[topic, partition].next_offset
        reply(ErrorCode.NONE, effects)

    def append_marker(self, what: PartitionMarker, reply: Callable, effects: Effects) -> None:
        (topic, partition), marker = what.place, what.marker
        data = records.encode_marker(marker, timestamp=effects.now_ms)
        error = self.append(topic, partition, data, effects).error
        if error is ErrorCode.NONE and topic == "__consumer_offsets" and self.groups is not None:
            commits = marker.marker_type is MarkerType.COMMIT
            self.groups.on_marker(partition, marker.producer_id, commits, effects)
        reply(error, effects)

    def allocate_block(self, effects: Effects) -> tuple[int, int] | None:
        if not self.has_blocks:
            return None
        first, self.next_block = self.next_block, self.next_block + self.block_size
        return first, self.block_size

    def random_uuid(self) -> str:
        return f"uuid-{next(self.uuids)}"


class World:
    """One broker with both coordinators, its clock, its timers and its disk."""

    def __init__(
        self,
        config: BrokerConfig = ONE,
        *,
        host: MemoryHost | None = None,
        disk: list[StorageOperation] | None = None,
        now_ms: int = NOW_MS,
    ) -> None:
        self.config = config
        self.host = host or MemoryHost()
        self.disk: list[StorageOperation] = disk if disk is not None else self._seeded()
        self.now_ms, self.monotonic_ms = now_ms, 0
        self.timers: dict[tuple[str, ...], int] = {}
        self.transactions = TransactionCoordinator(config, self.host, self.host, self.host)
        self.groups = GroupCoordinator(config, self.host, self.host.random_uuid)
        self.host.groups = self.groups
        self.step(self.groups.load, 0, self.host.logs["__consumer_offsets", 0])
        self.step(self.transactions.load, 0, self.host.logs["__transaction_state", 0])
        self.step(self.groups.start)
        self.step(self.transactions.start)

    def _seeded(self) -> list[StorageOperation]:
        """What the host's logs held from the beginning, as if it had been written."""
        operations: list[StorageOperation] = []
        for log in self.host.logs.values():
            operations += [Append(log.path, 0, batch) for batch in log.stored]
            operations += [Flush((log.path,))] if log.stored else []
            log.is_dirty = False
        return operations

    def step(self, call: Callable, *args, **more):
        """Run one request, timer or load to its end; what it returned."""
        effects = Effects(now_ms=self.now_ms, monotonic_ms=self.monotonic_ms)
        result = call(*args, effects, **more)
        self.disk.extend(effects.storage)
        for change in effects.timers:
            if isinstance(change, SetTimer):
                self.timers[change.key] = change.deadline_ms
            else:
                self.timers.pop(change.key, None)
        return result

    def ask(self, call: Callable, *args, **more):
        """A request whose answer does not wait for others; the answer."""
        answers: list = []
        self.step(call, *args, lambda answer, _: answers.append(answer), **more)
        (answer,) = answers
        return answer

    def advance(self, duration_ms: int) -> None:
        """Let time pass; timers fire in their order."""
        end_ms = self.monotonic_ms + duration_ms
        while self.timers:
            deadline_ms, key = min((at, key) for key, at in self.timers.items())
            if deadline_ms > end_ms:
                break
            self._set_clock(max(deadline_ms, self.monotonic_ms))
            del self.timers[key]
            self.step(self.transactions.on_timer, key)
            self.step(self.groups.on_timer, key)
        self._set_clock(end_ms)

    def _set_clock(self, monotonic_ms: int) -> None:
        self.now_ms += monotonic_ms - self.monotonic_ms
        self.monotonic_ms = monotonic_ms

    def crashed(self, *, after: int | None = None, loses_unflushed: bool = False) -> World:
        """A new broker on what the first `after` storage operations left, at the same time."""
        kept = self.disk[:after]
        host = MemoryHost()
        host.next_block = self.host.next_block
        host.block_size, host.uuids = self.host.block_size, self.host.uuids
        for topic, partition in self.host.logs:
            host.create(topic, partition).leader_epoch = 1
        durable = {
            path: index
            for index, operation in enumerate(kept)
            if isinstance(operation, Flush)
            for path in operation.paths
        }
        disk: list[StorageOperation] = []
        by_path = {log.path: log for log in host.logs.values()}
        for index, operation in enumerate(kept):
            if not isinstance(operation, Append):
                disk.append(operation)
            elif not loses_unflushed or index < durable.get(operation.path, -1):
                disk.append(operation)
                by_path[operation.path].add(operation.data)
        for log in host.logs.values():
            log.is_dirty = False
        return World(self.config, host=host, disk=disk, now_ms=self.now_ms)

    # ---------------------------------------------------------------- short words for requests

    def init(self, transactional_id: str | None = "t", timeout_ms: int = 60_000, **more):
        """InitProducerId."""
        return self.ask(self.transactions.init_producer_id, transactional_id, timeout_ms, **more)

    def begin(self, ids, *partitions: tuple[str, int], version: int = 2) -> ErrorCode:
        """AddPartitionsToTxn of `t`; `ids` has producer_id and producer_epoch."""
        return self.ask(
            self.transactions.add_partitions,
            "t",
            partitions or (("data", 0),),
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            client_transaction_version=version,
        )

    def end(self, ids, *, commit: bool, version: int = 2):
        """EndTxn of `t`."""
        return self.ask(
            self.transactions.end_txn,
            "t",
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            committed=commit,
            client_transaction_version=version,
        )

    def produce(self, ids, topic: str = "data", partition: int = 0) -> None:
        """One transactional batch, straight into the log."""
        batch = records.encode_batch(
            [Record(None, b"v", self.now_ms)],
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        self.step(self.host.append, topic, partition, batch)

    def state(self, transactional_id: str = "t") -> str:
        """Kafka's name of the transaction's state."""
        return self.transactions.describe(transactional_id).state

    def commit_offset(self, offset: int, group_id: str = "g", topic: str = "in", **more):
        """OffsetCommit of partition 0."""
        request = OffsetCommit(
            group_id=group_id, offsets=(OffsetToCommit(topic, 0, offset),), **more
        )
        return self.ask(self.groups.offset_commit, request)[topic, 0]

    def offset(self, group_id: str = "g", topic: str = "in", *, stable: bool = False):
        """OffsetFetch of partition 0: (offset, error)."""
        result = self.groups.offset_fetch(group_id, {topic: [0]}, require_stable=stable)
        return result.offsets[0].committed_offset, result.offsets[0].error

    def join(self, group_id: str = "g", **more) -> list:
        """JoinGroup; the list gets the answer when there is one."""
        answers: list = []
        more.setdefault("protocols", (("range", b"sub"),))
        request = JoinGroup(group_id=group_id, **more)
        self.step(self.groups.join_group, request, lambda result, _: answers.append(result))
        return answers

    def sync(self, group_id: str = "g", **more) -> list:
        """SyncGroup; the list gets the answer when there is one."""
        answers: list = []
        request = SyncGroup(group_id=group_id, **more)
        self.step(self.groups.sync_group, request, lambda result, _: answers.append(result))
        return answers
