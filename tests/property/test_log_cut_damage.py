"""A damaged log of a replica among others ends where the damage begins, and is filled there."""

from __future__ import annotations

import random

import pytest
from support.core.damage import Truth, batch_at, copied, filled, flip, truth_of
from support.core.log_build import LogOnDisk, build_batch

from broker_sim.core.effects import Delete, Truncate
from broker_sim.core.log import DamagedLog, LogConfig, segment_states
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import stamp_offsets

LEADER_EPOCH_BYTES = range(12, 16)
"""Outside the CRC: a change that fits both neighbours is not seen."""
REPLICATED = {"has_other_replicas": True, "leader_epoch_max": 3}


@pytest.fixture(scope="module")
def whole() -> tuple[LogOnDisk, Truth]:
    """Return the log of a killed broker that was started once before, and its content.

    The start has indexed every segment in the same way.
    """
    on_disk = filled()
    on_disk.load(clean=False, recovery_point=0, **REPLICATED)
    return on_disk, truth_of(on_disk, fully=True)


def log_files(on_disk: LogOnDisk) -> list[str]:
    return [f"t-0/{name}" for name in on_disk.disk.list("t-0") if name.endswith(".log")]


def damage(on_disk: LogOnDisk, rng: random.Random) -> int:
    """Harm one file of the log; the first offset that is not there any more."""
    path = rng.choice(log_files(on_disk))
    base = int(path[4:24])
    size = on_disk.disk.size_bytes(path)
    data = on_disk.disk.read(path, 0, size)
    # Without its first file the log begins later, as after retention.
    kind = rng.choice(("flip", "cut", "gone") if base else ("flip", "cut"))
    if kind == "gone":
        on_disk.disk.apply(Delete(path))
        return base
    byte = rng.randrange(size)
    at = batch_at(data, byte)
    while kind == "flip" and byte - at in LEADER_EPOCH_BYTES:
        byte = rng.randrange(size)
        at = batch_at(data, byte)
    if kind == "flip":
        flip(on_disk.disk, path, 8 * byte + rng.randrange(8))
    else:
        on_disk.disk.apply(Truncate(path, byte))
    return base if at == 0 else int.from_bytes(data[at : at + 8])


def refill(on_disk: LogOnDisk, source: LogOnDisk) -> None:
    """Append the leader's batches that a follower's log lacks."""
    for header, batch in source.log.batches(on_disk.log.log_end_offset):
        if header.base_offset >= on_disk.log.log_end_offset:
            effects = on_disk.effects()
            assert on_disk.log.append_as_follower(batch, effects).error is ErrorCode.NONE
            on_disk.carry_out(effects)


def check_prefix(on_disk: LogOnDisk, truth: Truth, end_offset: int) -> None:
    """Every record below the end, none above, and no damage left to be told of."""
    log = on_disk.log
    assert log.log_end_offset == end_offset
    assert not any(segment.damaged for segment in log._local.segments)
    wanted = [pair for pair in truth.records[False, 0] if pair[0] < end_offset]
    assert on_disk.consume(0, committed=False, max_bytes=400) == wanted


def states_of(on_disk: LogOnDisk) -> list:
    """Return the state of each segment, as the next start reads it."""
    return [(s.base_offset, s.size_bytes, s.next_offset) for s in on_disk.log._local.segments]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_before_the_damage_is_kept_and_what_others_have_makes_it_whole_again(whole, seed):
    source, truth = whole
    rng = random.Random(seed)
    damaged = copied(source)
    end_offset = damage(damaged, rng)
    damaged.load(clean=False, recovery_point=0, **REPLICATED)
    check_prefix(damaged, truth, end_offset)
    refill(damaged, source)
    for _ in range(2):
        assert truth_of(damaged, fully=True) == truth
        damaged.load(clean=False, recovery_point=0, **REPLICATED)


@pytest.mark.parametrize("seed", range(5))
def test_a_start_that_cuts_may_be_cut_short_itself_at_any_operation(whole, seed):
    source, truth = whole
    damaged = copied(source)
    end_offset = damage(damaged, random.Random(seed))
    effects = damaged.effects()
    copied(damaged).load(clean=False, recovery_point=0, effects=effects, **REPLICATED)
    names, ended = log_files(damaged), copied(damaged)
    for operation in effects.storage:
        ended.disk.apply(operation)
    for count in range(len(effects.storage) + 1):
        again = copied(damaged)
        for operation in effects.storage[:count]:
            again.disk.apply(operation)
        left = log_files(again)
        assert left == names[: len(left)]
        was_cut = any(again.disk.size_bytes(n) != damaged.disk.size_bytes(n) for n in left)
        assert not was_cut or left == log_files(ended), "what comes after damage goes first"
        again.load(clean=False, recovery_point=0, **REPLICATED)
        check_prefix(again, truth, end_offset)
        refill(again, source)
        assert truth_of(again, fully=True) == truth


def test_damage_that_a_broker_alone_has_noted_is_cut_when_there_are_other_replicas(whole):
    source, truth = whole
    damaged = copied(source)
    path = log_files(damaged)[1]
    damaged.disk.apply(Truncate(path, 30))
    damaged.load(clean=False, recovery_point=0)
    damaged.call(damaged.log.close)
    assert any(segment.damaged for segment in damaged.log._local.segments)
    damaged.load(clean=True, **REPLICATED)
    check_prefix(damaged, truth, int(path[4:24]))
    refill(damaged, source)
    assert truth_of(damaged, fully=True) == truth


def test_without_damage_nothing_else_is_done_than_for_a_broker_alone(whole):
    source, _ = whole
    for clean, point in ((False, 0), (False, source.log.recovery_point), (True, None)):
        alone, replica = copied(source).effects(), copied(source).effects()
        for effects, more in ((alone, {}), (replica, {"has_other_replicas": True})):
            copied(source).load(
                clean=clean, recovery_point=point, effects=effects, leader_epoch_max=3, **more
            )
        assert replica == alone


@pytest.mark.parametrize("others", [True, False])
def test_a_log_that_ends_below_its_start_is_refused_or_begins_there_again_where_others_have_it(
    whole, others
):
    source, _ = whole
    damaged = copied(source)
    for path in log_files(damaged)[1:]:
        damaged.disk.apply(Delete(path))
    damaged.disk.apply(Truncate(log_files(damaged)[0], 0))
    start = {"clean": False, "recovery_point": 0, "log_start_offset": 5}
    if not others:
        with pytest.raises(DamagedLog, match="below its log start 5"):
            damaged.load(**start)
        return
    for _ in range(2):
        log = damaged.load(**start, has_other_replicas=True)
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert damaged.disk.size_bytes(f"t-0/{segment_states.FILE_NAME}") is None


@pytest.mark.invariant(3)
@pytest.mark.parametrize("kind", ["kill", "clean"])
def test_what_a_compacted_leader_has_given_is_there_after_a_start(kind):
    replica = LogOnDisk(LogConfig(cleanup_policy="compact"))
    for base_offset in (0, 6, 9):
        batch = bytearray(build_batch(f"v{base_offset}"))
        stamp_offsets(batch, 0, base_offset=base_offset, leader_epoch=1)
        assert replica.replicate(bytes(batch)).error is ErrorCode.NONE
    if kind == "clean":
        replica.call(replica.log.close)
    log = replica.load(clean=kind == "clean", was_cleaned=True, **REPLICATED)
    assert [header.base_offset for header, _ in log.batches(0)] == [0, 6, 9]
    assert log.log_end_offset == 10


@pytest.mark.parametrize(("known", "found"), [(0, 0), (7, 7), (10_000, None)])
def test_the_high_watermark_is_what_was_known_and_not_above_the_logs_end(whole, known, found):
    source, _ = whole
    replica = copied(source)
    folder = replica._folder()
    object.__setattr__(folder, "is_replicated", True)
    replica._folder = lambda: folder
    log = replica.load(clean=False, recovery_point=0, high_watermark=known, **REPLICATED)
    assert log.high_watermark == (log.log_end_offset if found is None else found)
