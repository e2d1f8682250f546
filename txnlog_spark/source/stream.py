"""The streaming source: what Spark asks on the driver, once per micro-batch, and in the tasks.

Spark keeps one reader per query run in a worker of its own and asks it, in this order: for a new
query `initialOffset` (also when batch 0 is replayed), then per micro-batch `latestOffset` (its
answer goes to `<checkpoint>/offsets/<batchId>`), `partitions`, and `commit` when the next batch is
logged. `read` runs in the tasks on a copy.

Every offset carries a `SourceNote`, the cluster that it is a position in: one from a checkpoint of
another cluster is refused. Four rules keep batches repeatable:

- A start that asking again could change (latest, committed, a timestamp after the last record) is
  made batch 0's *end*: batch 0 is then empty, and its log entry is the start that holds. Spark does
  not keep a Python source's initial offset, so this is where it is kept.
- A start from a group's committed offsets is logged with a `CommittedStart` beside it, also when
  the group had none. The sink commits this empty batch only if the group is still there, after it
  has fenced an older driver that might have moved it (`commit.judgement.check_expected`): so what
  such a driver holds pending is not waited for here.
- Replayed batch 0 may start after its logged end for that reason: it is then empty, not rewound.
- With a group, the first batch after a restart ends where the group was committed, if that is ahead
  (`planning.cap_at_committed`): a committed batch that the checkpoint lost is found again. A start
  that this run took from the group is not capped: there is no batch to be found. Where other
  sources feed the query too, that batch may be one in which this source stood still: its first poll
  then ends where it starts (`planning.may_hide_a_lost_batch`), and the next one goes on. A trigger
  that asks once only (once, availableNow) would end without reading; there it is not held.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.topics import TopicPartition
from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.errors import DataLoss, UnknownTopic, WrongCluster
from txnlog_spark.offsets import (
    CommittedStart,
    SourceNote,
    committed_start_of,
    from_json_value,
    source_note_of,
    to_json_value,
    with_committed_start,
    with_source_note,
)
from txnlog_spark.source.brokers import (
    confirm_log_ends,
    connected_cluster,
    discover,
    fetch_committed,
    fetch_offsets,
    fetch_positions,
)
from txnlog_spark.source.data_loss import (
    REMEDY,
    Loss,
    find_deleted,
    find_late_additions,
    find_rewound,
)
from txnlog_spark.source.hanging_transactions import (
    HangingTransaction,
    HangingTransactions,
    explain,
    find_hanging,
)
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.planning import (
    cap_at_committed,
    count_waiting,
    limit_offsets,
    may_hide_a_lost_batch,
    plan_ranges,
    plan_tasks,
)
from txnlog_spark.source.positions import is_repeatable, starts_from_group
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors

logger = logging.getLogger(__name__)

DISCOVERY_SECONDS = 1.0
"""An idle query asks for its end a hundred times a second; for new partitions once a second.

Of a pattern only the topics that it matched are asked for so often. For others all topics have to
be listed with all their partitions, seconds of work on a large cluster, and that is done once in
`kafka.metadata.max.age.ms`, as in Kafka's own consumer, and when one of the matched is gone.
Where `partition.metadata.cache.ttl.ms` is set, it says both, as in Spark's own source.
"""

HIGH_WATERMARK_SECONDS = 1.0
"""And no more often for the high watermarks."""

NO_ROW_LIMIT = ReadMaxRows(2**63 - 1)
"""All that is available, in another word than `ReadAllAvailable`."""

Offsets = dict[TopicPartition, int]
JsonOffset = dict[str, Any]


class TxnLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source. Holds plain values only: copies of it are pickled to the tasks.

    `clock` gives seconds, as `time.monotonic` does.
    """

    def __init__(
        self, settings: SourceSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._initial: Offsets | None = None
        self._committed: CommittedStart | None = None
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._discovered: tuple[TopicPartition, ...] | None = None
        self._discovered_at = 0.0
        self._listed_at = 0.0
        self._fired_at: float | None = None
        self._high: Offsets = {}
        self._high_at = -math.inf
        self._standstills = HangingTransactions()

    def initialOffset(self) -> JsonOffset:
        """Where a new query starts; the same for the whole run. Raises UnknownTopic."""
        with readable_errors():
            if self._initial is None:
                settings = self._settings
                found = fetch_positions(
                    settings, settings.starting, self._listed(), sink_compares=True
                )
                self._initial = found.offsets
                if settings.group_id is not None and starts_from_group(settings.starting):
                    self._committed = CommittedStart(settings.group_id, found.committed)
            return self._noted(to_json_value(self._initial))

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, as rows.

        With a group or minOffsetsPerTrigger never "all available": Spark says that for a trigger
        that asks once, whatever is given here, and `latestOffset` has to know one. (A Python source
        can give one limit alone: the minimum is not among what it gives.)
        """
        settings = self._settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        if settings.group_id is None and settings.min_offsets_per_trigger is None:
            return ReadAllAvailable()
        return NO_ROW_LIMIT

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of the query: what is in the log now."""
        with readable_errors():
            self._target = fetch_offsets(self._settings, self._listed(), "latest")
            if left_out := self._held_up(self._target):
                logger.warning(
                    "this query reads what is there now, and ends before an open transaction in %s",
                    self._explain(left_out),
                )

    def latestOffset(self, start: JsonOffset, limit: ReadLimit) -> JsonOffset:
        """The end of the next batch: what is available, within `limit` and the rules above."""
        with readable_errors():
            self._check_cluster(start)
            begin = from_json_value(start)
            first = self._latest is None
            available = self._available(begin)
            self._latest = available
            new = first and begin == self._initial and committed_start_of(start) is None
            if new and not is_repeatable(self._settings.starting):
                return self._moving_start(begin)
            end = None
            if first:
                committed = fetch_committed(self._settings, available)
                end = cap_at_committed(begin, available, committed)
                asks_again = self._target is None and not isinstance(limit, ReadAllAvailable)
                held = asks_again and may_hide_a_lost_batch(begin, available, committed)
                if end is None and held:
                    return start  # its very text: another would be a batch
            if end is None:
                if not isinstance(limit, ReadAllAvailable) and self._waits(begin, available):
                    return start
                end = self._limited(begin, available, limit)
            return self._noted(to_json_value(end))

    def reportLatestOffset(self) -> JsonOffset | None:
        """How far the log went at the last `latestOffset`, for the query's progress report.

        Records behind an open transaction are counted, though no batch can have them yet: a query
        that waits for one is not up to date.
        """
        if self._latest is None:
            return None
        latest = {p: max(end, self._high.get(p, end)) for p, end in self._latest.items()}
        return self._noted(to_json_value(latest))

    def partitions(self, start: JsonOffset, end: JsonOffset) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        with readable_errors():
            self._check_cluster(start, end)
            if committed_start_of(end) is not None:
                return []
            begin, until = from_json_value(start), from_json_value(end)
            replayed_first = self._latest is None and begin == self._initial
            if not replayed_first:
                rewound = find_rewound(begin, until)
                self._report(rewound)
            added = sorted(set(until) - set(begin))
            begin.update(self._starts_of_added(added))
            tasks = plan_tasks(
                plan_ranges(begin, until),
                min_partitions=self._settings.min_partitions,
                max_records_per_partition=self._settings.max_records_per_partition,
            )
            bootstrap_servers = resolve_bootstrap(self._settings.connection)
            return [RangePartition(ranges, bootstrap_servers) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one task as Arrow batches."""
        check(isinstance(partition, RangePartition), "a partition of another source")
        with readable_errors():
            yield from read_ranges(self._settings, partition)  # type: ignore[arg-type]

    def commit(self, end: JsonOffset) -> None:
        """Only a hint: the group's offsets are committed by the sink, with the output."""

    def _waits(self, begin: Offsets, available: Offsets) -> bool:
        """Whether the batch waits for minOffsetsPerTrigger, as Spark's Kafka source decides it.

        The first of a run does not wait, and none longer than maxTriggerDelay after the one before.
        Nor does any under AvailableNow: what is waited for would not come, and the query would end
        without the rest.
        """
        wanted = self._settings.min_offsets_per_trigger
        if wanted is None or self._target is not None:
            return False
        now, delay = self._clock(), self._settings.trigger_delay_ms_max / 1000
        is_late = self._fired_at is None or now - self._fired_at >= delay
        if not is_late and count_waiting(begin, available) < wanted:
            return True
        self._fired_at = now
        return False

    def _moving_start(self, begin: Offsets) -> JsonOffset:
        """The end of the empty first batch, which keeps where the query starts."""
        if self._committed is None:
            return self._noted(to_json_value(begin))
        return self._noted(with_committed_start(begin, self._committed))

    def _noted(self, value: JsonOffset) -> JsonOffset:
        """The offset with its cluster and group: a number alone does not say which log it is of.

        The same cluster gives the same text: Spark compares texts, and two for one offset would be
        a batch.
        """
        cluster_id = connected_cluster(self._settings)
        if cluster_id is None:
            return value
        return with_source_note(value, SourceNote(cluster_id, self._settings.group_id))

    def _check_cluster(self, *offsets: JsonOffset) -> None:
        """Raise WrongCluster for a checkpoint's offset that another cluster gave."""
        cluster_id = connected_cluster(self._settings)
        for note in map(source_note_of, offsets):
            if note is not None and cluster_id is not None and note.cluster_id != cluster_id:
                raise WrongCluster(
                    f"the checkpoint's offsets are positions in the log of cluster "
                    f"{note.cluster_id!r}, but the cluster that is connected to is {cluster_id!r}, "
                    "where the same numbers are other records. Nothing was read. Set "
                    "kafka.bootstrap.servers to the cluster of the checkpoint, or start a new "
                    "checkpoint for this one"
                )

    def _available(self, begin: Offsets) -> Offsets:
        """The end of every partition now, or the target of AvailableNow."""
        ends = self._target
        if ends is None:
            ends = self._ends_now(begin)
        elif lost := [p for p in begin if p not in ends]:
            # Frozen before it was known what the query reads; asked for by name some may be there.
            found = self._ends_now(begin)
            ends = self._target = ends | {p: found[p] for p in lost if p in found}
        self._report(find_deleted(begin, ends))
        suspects = find_rewound(begin, ends)
        if suspects:
            ends = self._after_rewind(begin, ends, suspects)
        return self._with_additions(begin, ends)

    def _ends_now(self, begin: Offsets) -> Offsets:
        try:
            return self._ask_ends(begin)
        except UnknownTopic:
            # Deleted since it was discovered: to be found missing, as any other deleted topic is.
            self._discovered = None
            return self._ask_ends(begin)

    def _ask_ends(self, begin: Offsets) -> Offsets:
        ends = fetch_offsets(self._settings, self._existing(begin), "latest")
        now = self._clock()
        if now >= self._high_at + HIGH_WATERMARK_SECONDS:
            self._high_at = now
            if lasting := self._standstills.find(self._held_up(ends), now):
                logger.warning(
                    "for a minute nothing could be read behind an open transaction in %s",
                    self._explain(lasting),
                )
        return ends

    def _held_up(self, ends: Offsets) -> list[HangingTransaction]:
        """Where there are records after these last stable offsets."""
        if not self._settings.read_committed:
            return []
        self._high = fetch_offsets(self._settings, ends, "latest", read_committed=False)
        return find_hanging(ends, self._high)

    def _explain(self, found: list[HangingTransaction]) -> str:
        return explain(found, resolve_bootstrap(self._settings.connection))

    def _existing(self, begin: Offsets) -> tuple[TopicPartition, ...]:
        """The partitions that exist; a topic that was deleted is left out, not an error yet."""
        cache_ms = self._settings.partition_cache_ms
        cache_seconds = cache_ms / 1000 if cache_ms > 0 else DISCOVERY_SECONDS
        fresh = self._clock() < self._discovered_at + cache_seconds
        if fresh and self._discovered is not None:
            return self._discovered
        topics = {p.topic for p in begin}
        deleted: frozenset[str] = frozenset()
        matching = self._matching()
        while True:
            try:
                self._discovered = discover(
                    self._settings, known=begin, without=deleted, matching=matching
                )
                self._discovered_at = self._clock()
                if matching is None:
                    self._listed_at = self._discovered_at
                return self._discovered
            except UnknownTopic as error:
                if not error.topics or not set(error.topics) <= topics - deleted:
                    raise
                self._report_deleted(begin, error)
                deleted |= frozenset(error.topics)

    def _listed(self) -> tuple[TopicPartition, ...]:
        """The partitions that exist, before it is known which are read; not yet the last word."""
        self._discovered = discover(self._settings)
        self._listed_at = self._clock()
        return self._discovered

    def _matching(self) -> frozenset[str] | None:
        """The topics that a pattern matched, None when all are to be listed again."""
        if self._settings.partition_cache_ms > 0:
            return None
        listed_until = self._listed_at + self._settings.metadata_max_age_ms / 1000
        if self._discovered is None or self._clock() >= listed_until:
            return None
        return frozenset(p.topic for p in self._discovered)

    def _after_rewind(self, begin: Offsets, ends: Offsets, suspects: list[Loss]) -> Offsets:
        """Ends for partitions that seem to have lost their tail.

        The last stable offset lies before the position also when the query read uncommitted
        records before: the position then holds until the transactions there are decided.
        """
        names = [loss.topic_partition for loss in suspects]
        latest = fetch_offsets(self._settings, names, "latest", read_committed=False)
        short = {p: begin[p] for p in names if latest[p] < begin[p]}
        latest |= confirm_log_ends(self._settings, short, latest)
        self._report(find_rewound(begin, latest))
        return ends | {p: begin[p] if latest[p] >= begin[p] else ends[p] for p in names}

    def _with_additions(self, begin: Offsets, ends: Offsets) -> Offsets:
        """Check partitions that appeared since the last batch: they are read from the earliest."""
        added = [p for p in ends if p not in begin]
        if not added:
            return ends
        earliest = self._starts_of_added(added)
        logger.warning("new partitions: %s", ", ".join(map(str, added)))
        return {p: end for p, end in ends.items() if p in begin or p in earliest}

    def _starts_of_added(self, added: Sequence[TopicPartition]) -> Offsets:
        """Where partitions start that a batch discovers; those that were deleted are left out.

        Asked when the batch is planned and, since Spark does not keep it, when it is replayed: what
        was deleted in between is as much a loss as in any other partition.
        """
        left = list(added)
        earliest: Offsets = {}
        while left:
            try:
                earliest = fetch_offsets(self._settings, left, "earliest")
                break
            except UnknownTopic as error:
                if not {p.topic for p in left} & set(error.topics):
                    raise
                self._report_deleted(left, error)
                left = [p for p in left if p.topic not in error.topics]
        self._report(find_late_additions(earliest))
        return earliest

    def _report_deleted(self, partitions: Iterable[TopicPartition], error: UnknownTopic) -> None:
        gone = [p for p in partitions if p.topic in error.topics]
        self._report([Loss(p, "its topic was deleted") for p in gone])

    def _limited(self, begin: Offsets, available: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadAllAvailable) or limit == NO_ROW_LIMIT:
            return available
        check(isinstance(limit, ReadMaxRows), "a read limit that was not asked for", limit=limit)
        added = [p for p in available if p not in begin]
        if added:
            begin = begin | fetch_offsets(self._settings, added, "earliest")
        return limit_offsets(begin, available, limit.max_rows)  # type: ignore[attr-defined]

    def _report(self, losses: list[Loss]) -> None:
        if not losses:
            return
        text = "; ".join(map(str, losses))
        if self._settings.fail_on_data_loss:
            raise DataLoss(f"{text}: {REMEDY}")
        logger.warning("records are gone, going on with what is left: %s", text)
