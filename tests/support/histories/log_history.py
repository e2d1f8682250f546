"""Draw the history of one compacted log, with everything at once, beside a list of its batches.

Every action is a list of storage operations. A crash may come after any of them, as a killed
process or as a loss of power. The broker's files outside of the log's folder (recovery point, log
start, first dirty offset) are kept on the same disk, in the broker's order.
"""

from __future__ import annotations

import dataclasses
import random

from support.core.damage import BASE_OFFSET_BYTES, consume_until_damage, copied, flip
from support.models.compacted_log import COMPACTED, CompactedLog, draw, keyed_batch
from support.models.listed_log import Model

from broker_sim.core.effects import Delete, Effects, Flush, Truncate, WriteFile
from broker_sim.core.log import AppendOrigin
from broker_sim.core.log.cleaning import CleanerLimits, Cleaning
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, TransactionMarker, iter_batches

DAY_MS = 24 * 3600 * 1000
PRODUCERS = (7, 8, 9)
RECOVERY_POINT, LOG_START, CLEANED = "recovery-point", "log-start", "cleaned"


class LogHistory(CompactedLog):
    """Draws what happens from a seed; `act` does one thing and checks what is then there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.durable = 0
        """Offset below which all is flushed."""
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.round: Cleaning | None = None
        self.rewritten = 0
        """Below it the cleaner was at work."""
        self.may_forget = False
        """Batches were removed whole: a crash may lose what only they told of their producers."""
        self.days = 0
        self.counts: dict[str, int] = {}
        super().__init__(dataclasses.replace(COMPACTED, cleanup_policy=self._policy()))

    # ------------------------------------------------------------------ the world around the log

    def number(self, name: str) -> int | None:
        data = self.disk.read(name, 0, 100)
        return int(data) if data else None

    def _write(self, name: str, number: int, effects: Effects) -> None:
        effects.storage.append(WriteFile(name, b"%d" % number))

    def start(self, *, power: bool = True) -> None:
        """A new life, which may itself be cut short first."""
        self.round = None
        while True:
            effects = Effects(self.now_ms, 0)
            if self.rng.random() < 0.15:
                disk_effects: list[Effects] = []
                self.carry_out = disk_effects.append  # type: ignore[method-assign]
                self._load(effects)
                del self.carry_out
                self._carry_out_some(effects, power=power)
                continue
            self._load(effects)
            break
        kinds = {trace.kind for trace in effects.traces}
        assert not kinds & {"damaged-file", "corrupt-snapshot"}, effects.traces
        assert self.disk_names() == []
        assert self.log.log_end_offset >= self.durable, "what was flushed is lost"
        self._keep_below(self.log.log_end_offset)
        assert self.log.log_end_offset == self.model.end

    def _keep_below(self, end_offset: int) -> None:
        self.model.batches = [e for e in self.model.batches if e.end <= end_offset]

    def _load(self, effects: Effects) -> None:
        cleaned = self.number(CLEANED)
        self.load(
            clean=False,
            recovery_point=self.number(RECOVERY_POINT) or 0,
            effects=effects,
            log_start_offset=self.number(LOG_START) or 0,
            was_cleaned=cleaned is not None,
        )

    def _carry_out_some(self, effects: Effects, *, power: bool = True) -> None:
        for operation in effects.storage[: self.rng.randint(0, len(effects.storage))]:
            self.disk.apply(operation)
        if power and self.rng.random() < 0.5:
            self.disk.lose_power(self.rng)

    def finish(self, what: str, effects: Effects, crash: float = 0.03) -> None:
        """Carry the action out, or crash in the middle of it."""
        self.counts[what] = self.counts.get(what, 0) + 1
        if self.rng.random() < crash:
            self.counts[f"crash-{what}"] = self.counts.get(f"crash-{what}", 0) + 1
            self._carry_out_some(effects)
            self.start()
            self.check()
            return
        self.carry_out(effects)
        if not self.log.flush_paths():
            self.durable = self.log.log_end_offset

    # ------------------------------------------------------------------ actions

    def act(self) -> None:
        rng = self.rng
        drawn = rng.random()
        if drawn < 0.5:
            self._append()
        elif drawn < 0.62:
            self._end()
        elif drawn < 0.8:
            self._clean()
        else:
            rng.choice((self._roll, self._flush, self._checkpoint, self._delete_records,
                        self._retention, self._truncate, self._clock, self._configure, self._retry,
                        self.kill))()  # fmt: skip

    def _append(self) -> None:
        rng = self.rng
        pairs = tuple(draw(rng) for _ in range(rng.randint(1, 4)))
        kind = rng.random()
        producer, transactional = None, False
        if kind < 0.75:
            producer_id = rng.choice(PRODUCERS)
            transactional = producer_id != 9
            producer = self._next(producer_id)
        data = keyed_batch(
            list(pairs), producer=producer, transactional=transactional, timestamp=self.now_ms
        )
        effects = self.effects()
        result = self.log.append_as_leader(data, origin=AppendOrigin.CLIENT, effects=effects)
        if result.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and producer is not None:
            # Known by a marker alone: the client has to go on in another epoch (KIP-360).
            views = {v.producer_id: v for v in self.log.producers()}
            assert views[producer[0]].last_sequence < 0
            assert self.may_forget
            self.epochs[producer[0]] += 1
            return
        assert result.error is ErrorCode.NONE, result
        assert not result.duplicate
        self.wrote(result.base_offset, pairs, producer, transactional=transactional)
        self.finish("append", effects)

    def _next(self, producer_id: int) -> tuple[int, int, int]:
        epoch = self.epochs[producer_id]
        for batch in reversed(self.model.batches):
            if not batch.marker and batch.producer and batch.producer[:2] == (producer_id, epoch):
                return producer_id, epoch, batch.producer[2] + len(batch.values)
        return producer_id, epoch, 0

    def _end(self) -> None:
        rng = self.rng
        producer_id, kind = rng.choice(PRODUCERS[:2]), rng.choice(("commit", "abort"))
        bumps = rng.random() < 0.3
        epoch = self.epochs[producer_id] + bumps
        effects = self.effects()
        marker = TransactionMarker(producer_id, epoch, MarkerType[kind.upper()], 0)
        result = self.log.append_marker(marker, effects=effects)
        assert result.error is ErrorCode.NONE, result
        self.epochs[producer_id] = epoch
        self.wrote(result.base_offset, ("",), (producer_id, epoch, -1), marker=kind)
        self.finish("marker", effects)

    def _clean(self) -> None:
        rng, effects = self.rng, self.effects()
        if self.round is None:
            if not self.log.config.compacts:
                return
            plan = self.log.find_cleanable(self.number(CLEANED), self.now_ms)
            if not plan.is_due(self.log.config):
                return
            self._write(CLEANED, plan.first_dirty_offset, effects)
            limits = CleanerLimits(rng.choice((1, 300, 1 << 20)), rng.choice((4, 6, 1 << 20)))
            self.round = self.log.start_cleaning(plan, limits)
            self.rewritten = max(self.rewritten, plan.end_offset)
        for _ in range(rng.randint(1, 8)):
            if not self.round.is_valid:
                self.round.abandon(effects)
                self.round = None
                self.finish("abandon", effects, 0.3)
                return
            if self.round.step(effects):
                self._write(CLEANED, self.round.end_offset, effects)
                self.round = None
                self.finish("round", effects, 0.3)
                self.check()
                return
            before = self.round
            self.finish("step", effects, 0.1)
            if self.round is not before:
                return
            effects = self.effects()

    def _roll(self) -> None:
        effects = self.effects()
        self.log.roll(effects)
        self.finish("roll", effects, 0.2)

    def _flush(self) -> None:
        effects = self.effects()
        self.log.flush(effects)
        self.finish("flush", effects)

    def _checkpoint(self) -> None:
        effects = self.effects()
        if self.rng.random() < 0.7:
            self.log.flush(effects)
        self.log.checkpoint(effects)
        self._write(RECOVERY_POINT, self.log.recovery_point, effects)
        self.finish("checkpoint", effects, 0.2)

    def _delete_records(self) -> None:
        if not self.log.config.deletes:
            return
        low, high = self.log.log_start_offset, self.log.high_watermark
        wanted = self.rng.randint(low, low + (high - low) // self.rng.choice((1, 2, 8)))
        effects = self.effects()
        if self.log.increase_log_start(wanted, effects):
            effects.storage += [Flush(self.log.flush_paths())] if self.log.flush_paths() else []
            self.log.flushed(effects)
            self._write(LOG_START, wanted, effects)
            self.log.remove_below_start(effects)
            self.may_forget = True
            self.finish("delete-records", effects, 0.3)

    def _retention(self) -> None:
        effects = self.effects()
        if self.log.apply_retention(effects):
            self.may_forget = True
        self.finish("retention", effects, 0.3)

    def _truncate(self) -> None:
        """Truncate as a follower does: compacted batches were stable, and stay so.

        A crash leaves all batches, or those below the offset: `start` looks which.
        """
        low, effects = max(self.log.log_start_offset, self.rewritten), self.effects()
        ends = [batch.end for batch in self.model.batches if batch.end >= low]
        ends = [end for end in ends if min(self._open_at(end), default=low) >= self.rewritten]
        if not ends:
            return
        if self.round is not None:
            self.round.abandon(effects)
            self.round = None
        self.log.truncate_to(self.rng.choice(ends), effects)
        self.durable = min(self.durable, self.log.log_end_offset)
        truncated = self.log
        self.finish("truncate", effects, 0.5)
        if self.log is truncated:
            self._keep_below(self.log.log_end_offset)
            self.check()

    def _open_at(self, end: int) -> list[int]:
        """The first offsets of transactions that are undecided in a log with this end."""
        kept = Model([batch for batch in self.model.batches if batch.end <= end])
        return [txn.first for txn in kept.transactions() if txn.marker is None]

    def _clock(self) -> None:
        passed_ms = self.rng.choice((1, 500, 1100, 1100, DAY_MS))
        self.now_ms += passed_ms
        self.days += passed_ms == DAY_MS
        self.may_forget |= passed_ms == DAY_MS
        self.log.expire_producers(self.effects())

    def _policy(self) -> str:
        return self.rng.choice(("compact", "compact", "compact,delete", "delete"))

    def _configure(self) -> None:
        self.config = self.log.config = dataclasses.replace(
            COMPACTED,
            cleanup_policy=self._policy(),
            retention_bytes=self.rng.choice((-1, 1500, 4000)),
            segment_bytes=self.rng.choice((600, 600, 1200)),
        )

    def _retry(self) -> None:
        """The last batch of a producer once more: it is known, or nothing of its producer is."""
        known = {view.producer_id: view for view in self.log.producers()}
        own = [b for b in self.model.batches if b.producer and b.producer[0] == 9]
        if not own:
            return
        if 9 not in known:
            assert self.may_forget, "a producer was forgotten"
            return
        data = keyed_batch(list(own[-1].values), producer=own[-1].producer, timestamp=self.now_ms)
        result = self.log.append_as_leader(data, origin=AppendOrigin.CLIENT, effects=self.effects())
        assert (result.error, result.duplicate) == (ErrorCode.NONE, True), result
        assert result.last_offset == own[-1].end - 1

    def kill(self) -> None:
        """SIGKILL between two actions loses nothing at all."""
        before = self._known()
        self.counts["kill"] = self.counts.get("kill", 0) + 1
        kept = self.durable
        self.durable = self.log.log_end_offset
        self.start(power=False)
        self.durable = min(kept, self.durable)
        self.log.expire_producers(self.effects())
        after = self._known()
        assert after == before, (before, after)
        self.check()

    def _known(self) -> tuple:
        self.log.expire_producers(self.effects())
        views = self.log.producers()
        if self.days:
            # What expired and came back is known as well as the last snapshot tells (as in Kafka).
            views = tuple(
                dataclasses.replace(view, coordinator_epoch=-1, last_sequence=-1) for view in views
            )
        return self.log.log_end_offset, self.log.last_stable_offset, views

    # ------------------------------------------------------------------ what must be true

    def check(self) -> None:
        assert self.log.log_start_offset >= (self.number(LOG_START) or 0)
        super().check()


def live(seed: int, count: int) -> dict[str, int]:
    """Carry out `count` actions, then check in another life; return how often each thing
    happened."""
    log = LogHistory(seed)
    for _ in range(count):
        log.act()
    log.check()
    log.kill()
    return log.counts


def damage(seed: int, count: int) -> None:
    """The same, then files of the log are lost, cut or changed: nothing false is served."""
    log, rng = LogHistory(seed), random.Random(seed + 1)
    for _ in range(count):
        log.act()
    clean = rng.random() < 0.5
    if clean:
        log.call(log.log.close)
    start, model = log.log.log_start_offset, log.model
    model.start = start
    committed, everything = (
        dict(model.records(committed=only, end=model.end)) for only in (True, False)
    )
    spared = _base_offset_bytes(log.disk)
    for _ in range(4):
        damaged = copied(log)
        for _ in range(rng.choice((1, 1, 2))):
            _damage_file(damaged.disk, rng, spared)
        recovery_point = log.number(RECOVERY_POINT) or 0
        damaged.load(clean=clean, recovery_point=recovery_point, was_cleaned=True)
        for is_committed, allowed in ((True, committed), (False, everything)):
            for at in range(start, damaged.log.log_end_offset, 5):
                for offset, value in consume_until_damage(damaged, at, committed=is_committed):
                    assert value == (allowed.get(offset, ("", "never"))[1] or ""), (seed, offset)
        data = keyed_batch([("after", "all")], timestamp=log.now_ms)
        assert damaged.append(data).error is ErrorCode.NONE
        damaged.load(clean=False, recovery_point=0, was_cleaned=True)


def _base_offset_bytes(disk: SimDisk) -> set[tuple[str, int]]:
    """Return the path and position of each byte of a base offset. Look them up before any damage,
    because damaged files have no batches.

    They lie outside the CRC: below the recovery point the broker does not check them, and neither
    does Kafka.
    """
    paths = [f"t-0/{name}" for name in disk.list("t-0") if name.endswith(".log")]
    return {
        (path, start + at)
        for path in paths
        for _, start in iter_batches(disk.read(path, 0, disk.size_bytes(path) or 0))
        for at in BASE_OFFSET_BYTES
    }


def _damage_file(disk: SimDisk, rng: random.Random, spared: set[tuple[str, int]]) -> None:
    path = f"t-0/{rng.choice([n for n in disk.list('t-0') if n != 'partition.metadata'])}"
    size_bytes = disk.size_bytes(path) or 0
    kind = rng.randrange(5)
    if kind == 0:
        disk.apply(Delete(path))
    elif kind == 1:
        disk.apply(Truncate(path, rng.choice((0, rng.randint(0, size_bytes)))))
    elif size_bytes:
        bit = rng.randrange(8 * size_bytes)
        if (path, bit // 8) not in spared:
            flip(disk, path, bit)
