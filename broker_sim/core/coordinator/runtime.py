"""The runtime of both coordinators: shards, and the one way in which their state changes.

A coordinator is a replicated state machine over the partitions of an internal topic (source:
Kafka's `coordinator-common`); a *shard* is what it holds of one partition. A request comes to a
`CoordinatorResult`: records, and the reply to give when they are committed. The runtime appends
the records as one batch; when the partition's high watermark has passed them, it replays them and
replies. With one replica that is in the same step. At load the same `replay` reads the log.

A load reads up to the log end, and the shard is used when the high watermark has passed that: a
new leader has records that its predecessor has not answered for, which may count or, if it fails
too, be lost. Until then requests are answered COORDINATOR_LOAD_IN_PROGRESS.

When a shard is unloaded, a request that waits for a record of it is answered NOT_COORDINATOR: the
record may be committed by the next leader, or lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker_sim.core.coordinator.codec import CorruptRecord, is_storable
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.timers import KeyedTimers, TimerAction
from broker_sim.core.effects import Effects, Flush, TimerKey
from broker_sim.core.log import PartitionLog
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    CorruptBatch,
    MarkerType,
    Record,
    decode_marker,
    decode_records,
    encode_batch,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

NO_OFFSET = -1
_UNAVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_LOST = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def java_hash_code(text: str) -> int:
    """Java's `String.hashCode`: signed 32 bits over UTF-16 code units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(key: str, partition_count: int) -> int:
    """The coordinator partition of a transactional id or group id.

    Kafka's `Utils.abs(hashCode) % count`, where the abs of the smallest int is 0.
    """
    value = java_hash_code(key)
    return (0 if value == -(2**31) else abs(value)) % partition_count


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """Return the error for the client when the append to the coordinator's log failed with `error`.

    Source: Kafka's `TransactionStateManager.appendTransactionToLog`, `CoordinatorOperation-
    ExceptionHelper` for groups; both use one mapping.
    """
    if error in _UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _MOVED:
        return ErrorCode.NOT_COORDINATOR
    if error in _TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


def flush_logs(
    writer: PartitionWriter, partitions: Iterable[TopicPartition], effects: Effects
) -> None:
    """Make all appends of these partitions durable before the next storage operation.

    One Flush for all of them, so that a host can sync the files side by side. Partitions that
    are not here are skipped.
    """
    logs = [writer.log(topic, partition) for topic, partition in sorted(set(partitions))]
    present = [log for log in logs if log is not None]
    paths = tuple(path for log in present for path in log.flush_paths())
    if not paths:
        return
    effects.storage.append(Flush(paths))
    for log in present:
        log.flushed(effects)


R = TypeVar("R")


class Logged(NamedTuple, Generic[R]):
    """A record that is committed, as it is in the log."""

    record: R
    offset: int
    producer_id: int
    """Producer id of a transactional batch, else -1."""


class Shard(Protocol[R]):
    """State of a coordinator for a partition of its topic; R is the type of its records."""

    @property
    def partition(self) -> int:
        """Partition of the internal topic."""

    def encode(self, record: R, now_ms: int) -> Record:
        """The record as it is appended."""

    def decode(self, raw: Record) -> R | None:
        """The record, None for one to skip. Raises CorruptRecord."""

    def replay(self, logged: Logged[R], effects: Effects) -> None:
        """The only place where a record changes the shard."""

    def on_loaded(self, effects: Effects) -> None:
        """React to the end of the load: all of the log was replayed."""


S = TypeVar("S", bound=Shard[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorResult(Generic[R]):
    """Result of a request: records to append, and the reply to give then.

    `reply` gets NONE once the records are committed and replayed, else the coordinator's error.
    `flush`: the answer promises that the records outlive a power loss. Transactional records (with
    a producer) need no flush: the decision of the transaction flushes them. `covered` are the
    partitions of the committed offsets. Their records are made durable first: an offset that
    outlived them would make its group skip new records with the same offsets.
    """

    records: Sequence[R]
    reply: Reply[ErrorCode]
    flush: bool
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    covered: Collection[TopicPartition] = ()
    guard: int | None = None
    """Guard of transactional records, for `PartitionLog.append_as_leader`."""

    @property
    def is_transactional(self) -> bool:
        """The records count when the producer's transaction is committed."""
        return self.producer_id != NO_PRODUCER_ID


class CoordinatorRuntime(Generic[S, R]):
    """The shards of one coordinator."""

    def __init__(
        self,
        name: str,
        topic: str,
        partition_count: int,
        writer: PartitionWriter,
        new_shard: Callable[[int, PartitionLog], S],
        timers: KeyedTimers,
        *,
        replay_marker: Callable[[S, int, bool], int] | None,
        flushes: bool,
    ) -> None:
        """`name` is that of traces and timers. `replay_marker` has a marker in a shard's log decide
        a producer's transaction; None where there are none. `flushes` False: durability is left
        to replication."""
        self._name = name
        self._timers = timers
        self._topic = topic
        self._partition_count = partition_count
        self._writer = writer
        self._new_shard = new_shard
        self._replay_marker = replay_marker
        self._flushes = flushes
        self._shards: dict[int, S] = {}
        self._loading: dict[int, object] = {}
        """Identity of each load under way; another load of the partition has another identity."""
        self._waiting: dict[int, list[CoordinatorResult[R]]] = {}
        """Appended and not committed yet, by partition."""
        self._last_offsets: dict[int, int] = {}
        """Offset of the last record that was appended, by partition."""

    def partition_for(self, key: str) -> int:
        """Return the partition of the topic that coordinates this transactional id or group id."""
        return partition_for(key, self._partition_count)

    def find(self, key: str, *, too_long: ErrorCode) -> S | ErrorCode:
        """The shard of a key, or NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS; `too_long` for
        one that no record can hold."""
        if not is_storable(key):
            return too_long
        partition = self.partition_for(key)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._shards.get(partition, ErrorCode.NOT_COORDINATOR)

    def shard(self, partition: int) -> S | None:
        """The shard of a partition, None when it is not loaded."""
        return self._shards.get(partition)

    def shards(self) -> Iterator[S]:
        """Yield all shards, in order."""
        for partition in sorted(self._shards):
            yield self._shards[partition]

    def is_loading(self, partition: int | None = None) -> bool:
        """True if this partition is being loaded; None: any partition."""
        return bool(self._loading) if partition is None else partition in self._loading

    def resize(self, partition_count: int) -> None:
        """The topic exists now, with so many partitions."""
        self._partition_count = partition_count

    # ---------------------------------------------------------------- load

    def announce(self, partition: int, load: TimerAction, effects: Effects) -> None:
        """This broker leads the partition, of which nothing is loaded: call `load` in a step of its
        own, in which the files hold all that was appended."""
        self._loading[partition] = object()
        self._timers.schedule(self._load_timer(partition), 0, load, effects)

    def _load_timer(self, partition: int) -> TimerKey:
        return (f"{self._name}-load", str(partition))

    def load(
        self,
        partition: int,
        log: PartitionLog,
        on_loaded: Callable[[S, Effects], None],
        effects: Effects,
    ) -> None:
        """This broker leads the partition: replay its log, and call `on_loaded` when all of it is
        committed. Not at all when the log cannot be read, or the partition moves before.

        Then the partition answers NOT_COORDINATOR, and the trace says why: a wrong decision of a
        transaction would be for ever, and an older offset must not be given out for a newer one.
        """
        self.unload(partition, effects)
        shard, end_offset = self._new_shard(partition, log), 0
        try:
            for header, data in log.batches(log.log_start_offset):
                self._replay_batch(shard, header, data, effects)
                end_offset = header.next_offset
        except (CorruptBatch, CorruptRecord) as error:
            effects.trace(f"{self._name}-load-failed", partition=partition, error=str(error))
            return None
        token = self._loading[partition] = object()

        def on_committed(error: ErrorCode, effects: Effects) -> None:
            if self._loading.get(partition) is not token or error in _LOST:
                return
            del self._loading[partition]
            shard.on_loaded(effects)
            self._shards[partition] = shard
            on_loaded(shard, effects)

        if end_offset == 0:
            return on_committed(ErrorCode.NONE, effects)
        return self._writer.when_committed(
            self._topic, partition, end_offset - 1, on_committed, effects
        )

    def unload(self, partition: int, effects: Effects) -> S | None:
        """Another broker leads the partition now; the shard that was forgotten."""
        self._timers.cancel(self._load_timer(partition), effects)
        self._loading.pop(partition, None)
        shard = self._shards.pop(partition, None)
        for result in self._waiting.pop(partition, ()):
            result.reply(ErrorCode.NOT_COORDINATOR, effects)
        return shard

    # ---------------------------------------------------------------- append

    def settle(self, shard: S, reply: Reply[ErrorCode], effects: Effects) -> None:
        """Reply once all records that were appended before are committed: an answer without a
        record of its own must not tell what a failover could take back."""
        waiting = self._waiting.get(shard.partition)
        if not waiting:
            reply(ErrorCode.NONE, effects)
            return
        result: CoordinatorResult[R] = CoordinatorResult(records=(), reply=reply, flush=False)
        waiting.append(result)
        on_committed = partial(self._on_committed, shard, result, NO_OFFSET)
        last_offset = self._last_offsets[shard.partition]
        self._writer.when_committed(
            self._topic, shard.partition, last_offset, on_committed, effects
        )

    def write(self, shard: S, result: CoordinatorResult[R], effects: Effects) -> bool:
        """Append the records as one batch; once they are committed, replay them and reply.

        Return False if nothing was appended; the reply has the error then.
        """
        batch = encode_batch(
            [shard.encode(record, effects.now_ms) for record in result.records],
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
            # As Kafka's coordinators do; sequences are not checked for this origin.
            base_sequence=0 if result.is_transactional else NO_SEQUENCE,
            transactional=result.is_transactional,
        )
        if self._flushes:
            flush_logs(self._writer, result.covered, effects)
        place = TopicPartition(self._topic, shard.partition)
        outcome = self._writer.append(*place, batch, effects, guard=result.guard)
        if outcome.error is not ErrorCode.NONE:
            result.reply(coordinator_error(outcome.error), effects)
            return False
        self._last_offsets[shard.partition] = outcome.last_offset
        if result.flush and self._flushes:
            flush_logs(self._writer, [place], effects)
        self._waiting.setdefault(shard.partition, []).append(result)
        on_committed = partial(self._on_committed, shard, result, outcome.base_offset)
        self._writer.when_committed(*place, outcome.last_offset, on_committed, effects)
        return True

    def _on_committed(
        self,
        shard: S,
        result: CoordinatorResult[R],
        base_offset: int,
        error: ErrorCode,
        effects: Effects,
    ) -> None:
        if self._shards.get(shard.partition) is not shard:
            return  # unloaded meanwhile, and answered then
        self._waiting[shard.partition] = [
            each for each in self._waiting[shard.partition] if each is not result
        ]
        if error is ErrorCode.NONE:
            for delta, record in enumerate(result.records):
                shard.replay(Logged(record, base_offset + delta, result.producer_id), effects)
        result.reply(coordinator_error(error), effects)

    def _replay_batch(self, shard: S, header: BatchHeader, data: bytes, effects: Effects) -> None:
        if header.is_control:
            marker = decode_marker(data, 0, header)
            if marker is not None and self._replay_marker is not None:
                committed = marker.marker_type is MarkerType.COMMIT
                self._replay_marker(shard, marker.producer_id, committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for raw in decode_records(data, 0, header) if header.record_count else ():
            record = shard.decode(raw)
            if record is not None:
                shard.replay(Logged(record, raw.record_offset, producer_id), effects)
