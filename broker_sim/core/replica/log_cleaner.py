"""The log cleaner: which compacted log is cleaned next, and one step of that at a time.

A timer runs it. While a log is being cleaned the timer fires again soon, so that other inputs get
their turn between two steps; with nothing to do it waits for log.cleaner.backoff.ms. Of all
logs that are due the one with the largest dirty part comes first. A log that cannot be cleaned is
left alone until the next start, as in Kafka. Old segments of compacted logs are removed from here
too, never while one of them is being rewritten.

Sources: Kafka's `LogCleaner`, `LogCleanerManager`. What it does not do: several threads.
"""

from __future__ import annotations

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import FreeSpace
from broker_sim.core.log import PartitionLog
from broker_sim.core.log.cleaning import CannotClean, CleanerLimits, Cleaning
from broker_sim.core.log.offset_map import ENTRY_BYTES
from broker_sim.core.replica.log_manager import LogManager
from txnlog_kafka.wire.records import CorruptBatch

CLEANER_TIMER = ("log-cleaner",)
STEP_BYTES_MAX = 64 << 10
"""Read in one step at most: a few milliseconds of work."""
PAUSE_MS = 3
"""Between two steps: as long again for all others."""


class LogCleaner:
    """Drives one round of compaction after another."""

    def __init__(self, config: BrokerConfig, logs: LogManager, space: FreeSpace) -> None:
        self._config = config
        self._logs = logs
        self._space = space
        self._uncleanable: set[PartitionLog] = set()
        """Logs that failed; a new topic of the same name has another one."""
        self._log: PartitionLog | None = None
        self._round: Cleaning | None = None

    def start(self, effects: Effects) -> None:
        """The broker is up."""
        if self._config.boolean("log.cleaner.enable"):
            effects.set_timer(
                *CLEANER_TIMER, after_ms=self._config.integer("log.cleaner.backoff.ms")
            )

    def on_timer(self, effects: Effects) -> None:
        """Do a step, or look for a log that is due."""
        after_ms = 0
        if self._space.is_low:
            # It writes the new before it removes the old: not now.
            self._logs.apply_retention(effects, compacted=True)
            after_ms = self._config.integer("log.cleaner.backoff.ms")
        elif self._round is not None:
            after_ms = self._throttled(self._step_round(effects))
        elif not self._begin_round(effects):
            self._logs.apply_retention(effects, compacted=True)
            after_ms = self._config.integer("log.cleaner.backoff.ms")
        effects.set_timer(*CLEANER_TIMER, after_ms=after_ms)

    def abandon(self, log: PartitionLog, effects: Effects) -> None:
        """The log is about to be truncated: a round that is under way on it ends here."""
        if self._log is log and self._round is not None:
            self._give_up_round("the log is truncated", effects)

    # ----------------------------------------------------------------------- one round

    def _begin_round(self, effects: Effects) -> bool:
        """Start on the log that is due most."""
        compacted = {place: log for place, log in self._logs.items() if log.config.compacts}
        self._uncleanable.intersection_update(compacted.values())
        due = []
        for place, log in compacted.items():
            cleaned_to = self._logs.cleaned.offsets.get(place)
            plan = log.find_cleanable(cleaned_to, effects.now_ms)
            if plan.is_due(log.config) and log not in self._uncleanable:
                due.append((plan.dirty_ratio, place, log, plan))
        if not due:
            return False
        _, place, log, plan = max(due, key=lambda entry: entry[:2])
        if self._logs.cleaned.offsets.get(place) != plan.first_dirty_offset:
            # Before the first gap: from now on recovery knows that offsets may be missing.
            self._logs.cleaned.put({place: plan.first_dirty_offset}, effects)
        keys_max = max(1, self._config.integer("log.cleaner.dedupe.buffer.size") // ENTRY_BYTES)
        self._log = log
        self._round = log.start_cleaning(plan, CleanerLimits(self._step_bytes(), keys_max))
        effects.trace(
            "log-cleaning",
            log=log.directory,
            first_dirty=plan.first_dirty_offset,
            end=plan.end_offset,
        )
        return True

    def _step_round(self, effects: Effects) -> int:
        """Go on with the round; how many bytes the step was allowed."""
        log, cleaning = self._log, self._round
        if log is None or cleaning is None:
            return 0
        if self._logs.get(*log.name) is not log:
            self._round = None  # deleted, and its files with it
            return 0
        if not cleaning.is_valid:
            self._give_up_round(
                "segments were removed or the topic is no longer compacted", effects
            )
            return 0
        try:
            is_done = cleaning.step(effects)
        except (CannotClean, CorruptBatch) as error:
            self._uncleanable.add(log)
            self._give_up_round(str(error), effects)
            return 0
        if is_done:
            self._round = None
            self._logs.cleaned.put({log.name: cleaning.end_offset}, effects)
            self._logs.apply_retention(effects, compacted=True)
        return self._step_bytes()

    def _give_up_round(self, reason: str, effects: Effects) -> None:
        log, cleaning = self._log, self._round
        self._round = None
        if log is not None and cleaning is not None:
            cleaning.abandon(effects)
            effects.trace("log-not-cleaned", log=log.directory, reason=reason)

    # ----------------------------------------------------------------------- limits

    def _step_bytes(self) -> int:
        return max(1, min(STEP_BYTES_MAX, self._config.integer("log.cleaner.io.buffer.size")))

    def _throttled(self, size_bytes: int) -> int:
        """Ms to wait after reading so much, by log.cleaner.io.max.bytes.per.second."""
        rate = self._config.number("log.cleaner.io.max.bytes.per.second")
        return max(PAUSE_MS, int(size_bytes * 1000 / rate) if rate > 0 else 0)
