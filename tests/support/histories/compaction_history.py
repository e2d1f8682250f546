"""Draw the history of a compacted log from a seed, and check it."""

from __future__ import annotations

import random

from support.models.compacted_log import CompactedLog, carry_out_some, draw

from broker_sim.core.effects import Delete, Effects, Rename
from broker_sim.core.log.cleaning import CleanerLimits

TRANSACTIONAL = (7, 8)


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = CompactedLog()

    def write(self) -> None:
        rng, log = self.rng, self.log
        pairs = [draw(rng) for _ in range(rng.randint(1, 4))]
        kind = rng.random()
        if kind < 0.25:
            log.put(*pairs)
        elif kind < 0.4:
            log.put(*pairs, producer_id=9)
        elif kind < 0.75:
            log.put(*pairs, producer_id=rng.choice(TRANSACTIONAL), transactional=True)
        else:
            log.end(rng.choice(TRANSACTIONAL), rng.choice(("commit", "abort")))

    def limits(self) -> CleanerLimits:
        return CleanerLimits(self.rng.choice((1, 200, 1 << 20)), self.rng.choice((4, 6, 1 << 20)))

    def act(self) -> None:
        rng, log = self.rng, self.log
        roll = rng.random()
        if roll < 0.8:
            self.write()
        elif roll < 0.86:
            log.roll()
        elif roll < 0.89:
            log.now_ms += rng.choice((1, 900, 1100))
        elif roll < 0.9:
            log.checkpoint()
        elif roll < 0.92:
            log.restart(rng.choice(("clean", "kill", "power")), rng.randrange(100))
        else:
            log.clean(self.limits())
            log.check()


def state_of(log: CompactedLog) -> tuple:
    return (
        log.log.log_end_offset, log.log.last_stable_offset, known(log), log.consume_pairs(),
    )  # fmt: skip


def known(log: CompactedLog) -> list[tuple[int, int, int]]:
    """Producer id, epoch and last sequence of each producer."""
    return [(v.producer_id, v.producer_epoch, v.last_sequence) for v in log.log.producers()]


def tell_story(seed: int, count: int) -> None:
    """Writes, rolls, restarts and rounds of the cleaner; every check after each round."""
    story = Story(seed)
    for _ in range(count):
        story.act()
    log = story.log
    log.roll()
    log.check()
    while log.clean(story.limits()):
        log.check()
    log.now_ms += 2000
    log.put(("last", "x"))
    log.roll()
    log.clean()
    log.check()
    before = state_of(log)
    for kind in ("kill", "clean", "power"):
        log.restart(kind)
        log.check()
        assert state_of(log) == before
    lose_snapshots(log)
    log.restart("kill")
    log.check()
    assert state_of(log) == before


def tell_crashes(seed: int, count: int, *, power: bool) -> None:
    """Clean the log once, with a crash between any two operations of the cleaner."""
    story = Story(seed)
    for _ in range(count):
        story.write()
    log, rng = story.log, story.rng
    log.roll()
    cleaning = log.begin_cleaning(story.limits())
    if cleaning is None:
        return
    log.call(log.log.flush)
    before = log.consume_pairs()
    is_done = False
    while not is_done:
        effects = log.effects()
        is_done = cleaning.step(effects)
        swaps = any(isinstance(operation, Rename) for operation in effects.storage)
        if swaps or rng.random() < 0.1:
            crashed = log.copy()
            carry_out_some(effects, crashed.disk, rng.randint(0, len(effects.storage)))
            if power:
                crashed.disk.lose_power(rng)
            survive(crashed, rng)
        log.carry_out(effects)
    log.check()
    assert set(log.consume_pairs()) <= set(before)


def lose_snapshots(log: CompactedLog) -> None:
    """Delete the snapshots: only the log itself tells now what its producers did."""
    for name in log.disk.list("t-0"):
        if name.endswith((".snapshot", "-checkpoint", ".txnindex")):
            log.disk.apply(Delete(f"t-0/{name}"))


def survive(crashed: CompactedLog, rng: random.Random) -> None:
    """Start again, perhaps crash while starting, and compact on."""
    before = known(crashed)
    effects = start_effects(crashed)
    carry_out_some(effects, crashed.disk, rng.randint(0, len(effects.storage)))
    crashed.load(clean=False)
    assert crashed.disk_names() == []
    crashed.check()
    assert known(crashed) == before
    crashed.clean()
    crashed.check()
    crashed.restart("kill")
    crashed.check()


def start_effects(crashed: CompactedLog) -> Effects:
    """Return the effects of a start, without carrying them out."""
    trial = crashed.copy()
    collected = []
    trial.carry_out = collected.append
    trial.load(clean=False)
    return collected[0]
