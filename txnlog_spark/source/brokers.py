"""What a read asks the brokers: which partitions there are, and where they start and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from txnlog_kafka.operations import log_ends, offsets
from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID, topic_id_text
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.majority import find_topic_ids
from txnlog_kafka.operations.metadata import (
    confirm_missing,
    matching_topics,
    refresh_metadata,
    topic_partitions,
)
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DeadlineExceeded, OptionError, RetriableError, UnknownTopic
from txnlog_spark.group_note import GroupNote, notes_of
from txnlog_spark.offsets import SourceOffset
from txnlog_spark.source.positions import (
    NO_OFFSET,
    Bounds,
    check_in_log,
    explain_group_start,
    resolve_positions,
    starts_from_group,
    timestamps_wanted,
)
from txnlog_spark.source.selection import COMMITTED, PlanSettings, PositionRequest

COMMITTED_WAIT_MS_MIN = 330_000
"""A stable read of a group waits for the transactions that still hold offsets pending: a driver
that died in one is timed out by the coordinator (`kafka.transaction.timeout.ms`, 300 s by default,
looked at every 10 s)."""
DECIDED_WAIT_MS = 3_000
"""How long a stream's start waits for them. A driver that lives decides within a commit, much less
than this; one that died would be waited for until its transaction times out, and only the sink,
which comes after the start, can end that sooner."""

T = TypeVar("T")
Offsets = dict[TopicPartition, int]
Partitions = tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Brokers:
    """Operations of one client for a read of these settings."""

    session: Session
    settings: PlanSettings

    def discover(
        self,
        *,
        known: Iterable[TopicPartition] = (),
        without: Set[str] = frozenset(),
        matching: Set[str] | None = None,
    ) -> Operation[Partitions]:
        """The partitions that the options select, sorted; not those of the topics in `without`.

        `known` are being read: one that is not found is asked for by name, again and again for a
        while, before it is given up, since the broker that answered may have just started, or lag
        behind. `matching` are the topics that the pattern is known to match: only these are then
        asked for, as long as they are all there.
        Raises UnknownTopic naming the topics that do not exist, OptionError for an assigned
        partition that its topic does not have. A pattern that matches nothing yet is not an error.
        """
        read = frozenset(known)
        if self.settings.selection.assigned:
            return self._attempted(lambda: self._assigned(without))
        return self._attempted(lambda: self._listed(read, without, matching))

    def _listed(
        self, known: Set[TopicPartition], without: Set[str], matching: Set[str] | None
    ) -> Operation[Partitions]:
        selection = self.settings.selection
        if selection.pattern is not None:
            found = yield from self._of_pattern(without, matching)
        else:
            found = yield from topic_partitions(self.session, set(selection.topics) - without)
        listed = set(_flattened(found))
        wanted = {p for p in known if selection.selects(p.topic) and p.topic not in without}
        gone = yield from confirm_missing(self.session, wanted - listed)
        return tuple(sorted(listed | (wanted - gone)))

    def _of_pattern(
        self, without: Set[str], matching: Set[str] | None
    ) -> Operation[dict[str, tuple[int, ...]]]:
        session, selection = self.session, self.settings.selection
        if matching is not None:
            try:
                return (yield from topic_partitions(session, matching - without))
            except UnknownTopic as error:
                session.notice(f"listing all topics: {error}")
        selects = lambda topic: selection.selects(topic) and topic not in without  # noqa: E731
        return (yield from matching_topics(session, selects))

    def _assigned(self, without: Set[str]) -> Operation[Partitions]:
        assigned = tuple(p for p in self.settings.selection.assigned if p.topic not in without)
        existing = yield from topic_partitions(self.session, {p.topic for p in assigned})
        unseen = set(assigned) - set(_flattened(existing))
        gone = yield from confirm_missing(self.session, unseen)
        if gone:
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(gone))
            raise OptionError("assign", names, "partitions that exist: the topic has fewer")
        return assigned

    # -------------------------------------------------------------- which topics these are

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids that the broker which was asked last knows topics by, where it tells one."""
        known = {topic: self.session.cluster.topic_id(topic) for topic in topics}
        return {t: topic_id_text(each) for t, each in known.items() if each != NO_TOPIC_ID}

    def recreated(self, noted: Mapping[str, str]) -> Operation[dict[str, str]]:
        """Topics that were deleted and created again since they had these ids: their ids now.

        One broker is not believed: it may be one that does not know the topic of today yet.
        """
        session = self.session
        unknown = [topic for topic in noted if not session.cluster.partitions(topic)]
        if unknown:
            yield from self._attempted(lambda: refresh_metadata(session, unknown))
        now = self.topic_ids(noted)
        suspects = {topic for topic, each in now.items() if each != noted[topic]}
        if not suspects:
            return {}
        most = yield from self._attempted(
            lambda: find_topic_ids(session, suspects, deadline=session.deadline())
        )
        ids = {topic: topic_id_text(each) for topic, each in most.items()}
        return {topic: each for topic, each in ids.items() if each != noted[topic]}

    # -------------------------------------------------------------- offsets of partitions

    def earliest(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """Where the logs start."""
        return self.offsets_at(dict.fromkeys(partitions, offsets.EARLIEST_TIMESTAMP))

    def latest(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """Where they end for this reader."""
        return self.offsets_at(dict.fromkeys(partitions, offsets.LATEST_TIMESTAMP))

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """Where they end for a reader of open transactions too."""
        specs = dict.fromkeys(partitions, offsets.LATEST_TIMESTAMP)
        return self.offsets_at(specs, read_committed=False)

    def offsets_at(
        self, specs: SourceOffset, *, read_committed: bool | None = None
    ) -> Operation[Offsets]:
        """As ListOffsets answers; -1 where no record is as late as a timestamp."""
        if not specs:
            return {}
        isolation = self.settings.read_committed if read_committed is None else read_committed
        answer = yield from self._attempted(
            lambda: offsets.list_offsets(self.session, specs, read_committed=isolation)
        )
        return {partition: found.offset for partition, found in answer.items()}

    def confirm_log_ends(self, positions: SourceOffset, said: SourceOffset) -> Operation[Offsets]:
        """The high watermarks of logs that one broker says end before these positions."""
        return self._attempted(lambda: log_ends.confirm_log_ends(self.session, positions, said))

    def _attempted(self, ask: Callable[[], Operation[T]]) -> Operation[T]:
        """`ask` until it is answered, `fetchOffset.numRetries` times at most.

        Each time retries its requests until kafka.default.api.timeout.ms; what cannot pass is
        raised at once.
        """
        attempts = self.settings.offset_attempts
        for attempt in range(1, attempts):
            try:
                return (yield from ask())
            except (DeadlineExceeded, RetriableError) as error:
                self.session.notice(f"attempt {attempt} of {attempts}: {error}")
                yield Sleep(self.settings.offset_retry_ms)
        return (yield from ask())

    # -------------------------------------------------------------- offsets of the group

    def committed(
        self, partitions: Iterable[TopicPartition], *, stable_within_ms: int | None = None
    ) -> Operation[Offsets]:
        """The group's stable committed offsets; empty without a group.

        Waits while a transaction holds offsets pending, longer than other requests may take. Kafka
        reports a partition whose first offset ever is pending only when it is among `partitions`.
        Raises DeadlineExceeded.
        """
        session, group_id = self.session, self.settings.group_id
        if group_id is None:
            return {}
        if stable_within_ms is None:
            stable_within_ms = max(session.config.operation_timeout_ms, COMMITTED_WAIT_MS_MIN)
        deadline = session.deadline(stable_within_ms)
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

    def _decided(self, partitions: Iterable[TopicPartition]) -> Operation[Offsets]:
        """The group's stable committed offsets, or after a moment those that were decided last.

        For a reader that goes by them only if they are still the same when the producer that holds
        newer ones pending is fenced: an offset that is pending is not reported at all.
        """
        try:
            return (yield from self.committed(partitions, stable_within_ms=DECIDED_WAIT_MS))
        except DeadlineExceeded as error:
            again = "using the last stable offsets, which the sink compares again"
            self.session.notice(f"{again}: {error}")
        decided, _ = yield from self.visible_group()
        return decided

    # -------------------------------------------------------------- starts and ends

    def positions(
        self, request: PositionRequest, partitions: Partitions, *, sink_compares: bool = False
    ) -> Operation[Positions]:
        """Where `request` starts or ends in each partition.

        A start may lie between the last stable offset and the high watermark, an end may not: a
        read would wait there. The committed offsets are read first, so that the log's end is not
        older; with `sink_compares` they need not be stable, as the sink refuses a start that the
        group has left.
        Raises NoCommittedOffsets, OptionError for a request that does not fit the partitions, and
        DataLoss for an offset that is named or committed and lies outside the log (unless
        failOnDataLoss=false).
        """
        committed: Offsets = {}
        from_group = starts_from_group(request)
        if from_group:
            partitions, committed = yield from self._group_start(request, partitions, sink_compares)
        is_named = from_group or request.offsets is not None
        may_wait = is_named and request is self.settings.starting
        bounds = Bounds(
            earliest=(yield from self.earliest(partitions)),
            latest=(yield from self.latest(partitions)),
            by_timestamp=(yield from self.offsets_at(timestamps_wanted(request, partitions))),
            committed=committed,
            high_watermark=(yield from self.high_watermarks(partitions if may_wait else ())),
        )
        positions = resolve_positions(request, partitions, bounds)
        if is_named:
            bounds = yield from self._confirmed(positions, bounds)
            fails = self.settings.fail_on_data_loss
            option = request.option
            positions = check_in_log(positions, bounds, fail_on_data_loss=fails, option=option)
        return Positions(positions, committed)

    def _group_start(
        self, request: PositionRequest, partitions: Partitions, sink_compares: bool
    ) -> Operation[tuple[Partitions, Offsets]]:
        """The partitions of a start from the group, and what it has committed in them.

        A partition that it has committed in and that the broker asked first did not list is looked
        for: found later it would be a new one, and read again from its start. Raises
        NoCommittedOffsets.
        """
        committed: Offsets = {}
        if sink_compares:
            committed = yield from self._decided(partitions)
        if not sink_compares or (
            request.word == COMMITTED and not set(partitions) & set(committed)
        ):
            # Without a decided one, whether there is any has to be waited for.
            committed = yield from self.committed(partitions)
        unseen = set(filter(self.settings.selection.reads, committed)) - set(partitions)
        if unseen:
            partitions = yield from self.discover(known=unseen)
        found = {p: committed[p] for p in partitions if p in committed}
        group_id = present(self.settings.group_id, "a start from committed offsets has a group")
        self.session.notice(explain_group_start(request, group_id, partitions, found))
        return partitions, found

    def _confirmed(self, positions: SourceOffset, bounds: Bounds) -> Operation[Bounds]:
        """The bounds, in which no log ends before a position because a former leader says so."""
        high = bounds.high_watermark
        ends = {p: max(end, high.get(p, NO_OFFSET)) for p, end in bounds.latest.items()}
        beyond = {p: at for p, at in positions.items() if at > ends[p]}
        if not beyond:
            return bounds
        confirmed = yield from self.confirm_log_ends(beyond, {**bounds.latest, **high})
        return replace(
            bounds,
            latest={**bounds.latest, **(yield from self.latest(beyond))},
            high_watermark={**high, **{p: end for p, end in confirmed.items() if p in high}},
        )


class Positions(NamedTuple):
    """An offset per partition, and what the group had committed if that was asked for."""

    offsets: Offsets
    committed: Offsets


def _flattened(topics: Mapping[str, Iterable[int]]) -> Partitions:
    return tuple(sorted(TopicPartition(t, n) for t, numbers in topics.items() for n in numbers))
