"""Requests of a read to the brokers: partitions, and where they start and end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from txnlog_kafka.operations import metadata, offsets
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DeadlineExceeded, OptionError, RetriableError, UnknownTopic
from txnlog_spark.group_note import GroupNote, notes_of
from txnlog_spark.offsets import SourceOffset, positions_digest
from txnlog_spark.source import positions
from txnlog_spark.source.positions import Bounds
from txnlog_spark.source.selection import COMMITTED, PlanSettings, PositionRequest

COMMITTED_WAIT_MS_MIN = 330_000
"""Wait of a stable read for the transactions that hold offsets pending: the coordinator ends that
of a dead driver (`kafka.transaction.timeout.ms`, 300 s by default, looked at every 10 s)."""
DECIDED_WAIT_MS = 3_000
"""Wait of a stream's start for them. A live driver decides in much less; the transaction of a dead
one times out, and only the sink, which comes after the start, can end it sooner."""

T = TypeVar("T")
Offsets = dict[TopicPartition, int]
Partitions = tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LogQueries:
    """Questions of one client to the brokers, for a read with these settings."""

    session: Session
    settings: PlanSettings

    def discover(
        self,
        *,
        known: Collection[TopicPartition] = (),
        without: Set[str] = frozenset(),
        matching: Set[str] | None = None,
    ) -> Operation[Partitions]:
        """Return the partitions that the options select, sorted; no topic of `without`.

        `known` are being read: one that is not found is asked for by name for a while, as the
        broker that answered may lag behind. `matching` are topics that the pattern matches: only
        these are asked for, while they are all there. A pattern may match nothing yet.
        Raises UnknownTopic naming the missing topics, OptionError for missing assigned partitions.
        """
        return self._attempted(lambda: self._selected(known, without, matching))

    def _selected(
        self, known: Collection[TopicPartition], without: Set[str], matching: Set[str] | None
    ) -> Operation[Partitions]:
        session, selection = self.session, self.settings.selection
        if selection.pattern is not None:
            found = yield from self._of_pattern(without, matching)
        else:
            topics = selection.topics or {p.topic for p in selection.assigned}
            found = yield from metadata.topic_partitions(session, set(topics) - without)
        listed = {TopicPartition(topic, n) for topic, numbers in found.items() for n in numbers}
        expected = selection.assigned or known
        wanted = {p for p in expected if selection.reads(p) and p.topic not in without}
        gone = yield from metadata.confirm_missing(session, wanted - listed)
        if not selection.assigned:
            return tuple(sorted(listed | (wanted - gone)))
        if gone:
            names = ", ".join(map(str, sorted(gone)))
            raise OptionError("assign", names, "partitions that exist: the topic has fewer")
        return tuple(sorted(wanted))

    def _of_pattern(
        self, without: Set[str], matching: Set[str] | None
    ) -> Operation[dict[str, tuple[int, ...]]]:
        session, selection = self.session, self.settings.selection
        if matching is not None:
            try:
                return (yield from metadata.topic_partitions(session, matching - without))
            except UnknownTopic as error:
                session.notice(f"listing all topics: {error}")
        selects = lambda topic: selection.selects(topic) and topic not in without  # noqa: E731
        return (yield from metadata.matching_topics(session, selects))

    def recreated(self, noted: Mapping[str, str]) -> Operation[dict[str, str]]:
        """Return the new ids of topics that were deleted and created again since they had these."""
        return self._attempted(lambda: metadata.recreated_topics(self.session, noted))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """Return where the logs start."""
        return self.offsets_at(dict.fromkeys(partitions, offsets.EARLIEST_TIMESTAMP))

    def latest(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """Return where the logs end for this reader; the high watermarks for read_uncommitted."""
        return self.offsets_at(dict.fromkeys(partitions, offsets.LATEST_TIMESTAMP))

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """Return where the logs end for a reader of uncommitted records."""
        specs = dict.fromkeys(partitions, offsets.LATEST_TIMESTAMP)
        return self.offsets_at(specs, read_committed=False)

    def offsets_at(self, specs: SourceOffset, *, read_committed: bool = True) -> Operation[Offsets]:
        """Return the answer of ListOffsets; -1 where no record is as late as a timestamp."""
        if not specs:
            return {}
        isolation = read_committed and self.settings.read_committed
        answer = yield from self._attempted(
            lambda: offsets.list_offsets(self.session, specs, read_committed=isolation)
        )
        return {partition: found.offset for partition, found in answer.items()}

    def confirm_log_ends(self, positions: SourceOffset, said: SourceOffset) -> Operation[Offsets]:
        """Return the high watermarks of logs that one broker says end before these positions."""
        return self._attempted(lambda: offsets.confirm_log_ends(self.session, positions, said))

    def _attempted(self, ask: Callable[[], Operation[T]]) -> Operation[T]:
        """Ask `fetchOffset.numRetries` times at most, each until kafka.default.api.timeout.ms."""
        attempts = self.settings.offset_attempts
        for attempt in range(1, attempts):
            try:
                return (yield from ask())
            except (DeadlineExceeded, RetriableError) as error:
                self.session.notice(f"attempt {attempt} of {attempts}: {error}")
                yield Sleep(self.settings.offset_retry_ms)
        return (yield from ask())

    def committed(
        self, partitions: Iterable[TopicPartition], *, stable_within_ms: int | None = None
    ) -> Operation[Offsets]:
        """Return the group's stable committed offsets; empty without a group.

        Waits while a transaction holds offsets pending; Kafka reports a pending first offset of a
        partition only when it is among `partitions`. Raises DeadlineExceeded.
        """
        session, group_id = self.session, self.settings.group_id
        if group_id is None:
            return {}
        wait_ms = max(session.config.operation_timeout_ms, COMMITTED_WAIT_MS_MIN)
        deadline = session.deadline(stable_within_ms or wait_ms)
        found = yield from offsets.fetch_committed(
            session, group_id, partitions=partitions, deadline=deadline
        )
        return {p: each.committed_offset for p, each in found.items()}

    def visible_group(self) -> Operation[tuple[Offsets, list[GroupNote]]]:
        """Return the group's committed offsets that anybody sees, and the notes beside them."""
        group_id = self.settings.group_id
        if group_id is None:
            return {}, []
        found = yield from offsets.fetch_committed(self.session, group_id, require_stable=False)
        return {p: each.committed_offset for p, each in found.items()}, notes_of(found.values())

    def find_positions(
        self, request: PositionRequest, partitions: Partitions, *, sink_compares: bool = False
    ) -> Operation[Positions]:
        """Return where `request` starts or ends in each partition.

        A start may lie between the last stable offset and the high watermark; at such an end a read
        would wait. The committed offsets are read before the log's end. With `sink_compares` they
        need not be stable, as the sink refuses a start that the group has left.
        Raises NoCommittedOffsets, OptionError for a request that does not fit the partitions, and
        DataLoss for a named or committed offset outside the log (unless failOnDataLoss=false).
        """
        committed: Offsets = {}
        from_group = positions.starts_from_group(request)
        if from_group:
            partitions, committed = yield from self._group_start(request, partitions, sink_compares)
        is_named = from_group or request.offsets is not None
        is_start = request.option == self.settings.starting.option
        may_wait = partitions if is_named and is_start else ()
        wanted = positions.timestamps_wanted(request, partitions)
        bounds = Bounds(
            earliest=(yield from self.earliest(partitions)),
            latest=(yield from self.latest(partitions)),
            by_timestamp=(yield from self.offsets_at(wanted)),
            committed=committed,
            high_watermark=(yield from self.high_watermarks(may_wait)),
        )
        found = positions.resolve_positions(request, partitions, bounds)
        if is_named:
            bounds = yield from self._confirmed(found, bounds)
            fails, option = self.settings.fail_on_data_loss, request.option
            found = positions.check_in_log(found, bounds, fail_on_data_loss=fails, option=option)
        return Positions(found, committed)

    def _group_start(
        self, request: PositionRequest, partitions: Partitions, sink_compares: bool
    ) -> Operation[tuple[Partitions, Offsets]]:
        """Return the partitions of a start from the group, and its committed offsets in them.

        Partitions with committed offsets that no broker listed are looked for: found later they
        would be new, and read again from their starts. Raises NoCommittedOffsets if the group has
        no offset, or has lost some.
        """
        committed: Offsets = {}
        if sink_compares:
            try:
                committed = yield from self.committed(partitions, stable_within_ms=DECIDED_WAIT_MS)
            except DeadlineExceeded as error:
                text = f"using the last stable offsets, which the sink compares again: {error}"
                self.session.notice(text)
                committed, _ = yield from self.visible_group()
        has_none = request.word == COMMITTED and committed.keys().isdisjoint(partitions)
        if has_none or not sink_compares:
            # Without a decided one, whether there is any has to be waited for.
            committed = yield from self.committed(partitions)
        if unseen := set(filter(self.settings.selection.reads, committed)) - set(partitions):
            partitions = yield from self.discover(known=unseen)
        found = {p: committed[p] for p in partitions if p in committed}
        group_id = present(self.settings.group_id, "a start from committed offsets has a group")
        if 0 < len(found) < len(partitions):
            yield from self._check_complete(request, group_id, partitions)
        self.session.notice(positions.explain_group_start(request, group_id, partitions, found))
        return partitions, found

    def _check_complete(
        self, request: PositionRequest, group_id: str, partitions: Partitions
    ) -> Operation[None]:
        """Raise NoCommittedOffsets if the group has lost the offsets of some partitions.

        Kafka expires each offset of a group without members by its own age, so the offset of a
        partition that was idle expires first. The note of the group's last batch has the digest of
        all its positions: if the remaining offsets have this digest, the other partitions are new.
        """
        visible, notes = yield from self.visible_group()
        remaining = {p: at for p, at in visible.items() if p in partitions}
        digests = {positions_digest(remaining), positions_digest(visible)}
        if notes and digests.isdisjoint(note.positions for note in notes):
            raise positions.offsets_are_lost(request, group_id, partitions, remaining)

    def _confirmed(self, starts: SourceOffset, bounds: Bounds) -> Operation[Bounds]:
        """Return the bounds, in which no log ends early because a former leader says so."""
        latest, high = bounds.latest, bounds.high_watermark
        beyond = {p: at for p, at in starts.items() if at > max(latest[p], high.get(p, latest[p]))}
        if not beyond:
            return bounds
        confirmed = yield from self.confirm_log_ends(beyond, {**latest, **high})
        return replace(
            bounds,
            latest={**latest, **(yield from self.latest(beyond))},
            high_watermark={**high, **{p: end for p, end in confirmed.items() if p in high}},
        )


class Positions(NamedTuple):
    """Offset per partition, and the group's committed offsets if these were asked for."""

    offsets: Offsets
    committed: Offsets
