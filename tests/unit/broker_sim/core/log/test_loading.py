"""Start-up: what is known flushed, what is rebuilt, what is removed."""

from __future__ import annotations

import pytest
from support.core.log_build import NOW_MS, SMALL, LogOnDisk, build_batch

from broker_sim.core.effects import Append, Delete, Truncate, WriteFile
from broker_sim.core.log import InconsistentTopicId, LogConfig
from broker_sim.core.log.producer_snapshots import encode_snapshot, snapshot_name
from txnlog_kafka.wire.error_codes import ErrorCode


def filled() -> LogOnDisk:
    """Several segments, two producers, one aborted and one open transaction."""
    on_disk = LogOnDisk()
    for i in range(20):
        on_disk.produce(f"value {i}" * 3, producer=(7, 0, i))
    on_disk.produce("bad", producer=(8, 0, 0), transactional=True)
    on_disk.mark(8, 0, "abort")
    on_disk.produce("open", producer=(9, 1, 0), transactional=True)
    return on_disk


def load_effects(on_disk: LogOnDisk, *, clean: bool) -> list:
    effects = on_disk.effects()
    on_disk.load(clean=clean, effects=effects)
    return effects.storage


def files_of(on_disk: LogOnDisk) -> dict[str, bytes]:
    names = on_disk.disk.list("t-0")
    return {name: on_disk.disk.read(f"t-0/{name}", 0, 1 << 30) for name in names}


def content(on_disk: LogOnDisk) -> tuple:
    log = on_disk.log
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.last_stable_offset,
        log.producers(),
        log.read(0, max_bytes=1 << 30, read_committed=True, at_least_one_batch=True),
        on_disk.consume(0, committed=True),
    )


def test_a_clean_stop_leaves_nothing_to_do_and_to_flush():
    on_disk = filled()
    before = content(on_disk)
    on_disk.call(on_disk.log.close)
    assert load_effects(on_disk, clean=True) == []
    assert content(on_disk) == before
    assert on_disk.log.flush_paths() == ()


def test_a_killed_broker_leaves_good_files_that_need_no_repair():
    on_disk = filled()
    before, files_before = content(on_disk), files_of(on_disk)
    assert load_effects(on_disk, clean=False) == []
    assert (content(on_disk), files_of(on_disk)) == (before, files_before)
    assert on_disk.log.flush_paths() == ("t-0/00000000000000000019.log",)


def test_a_second_start_after_a_repair_has_nothing_to_do():
    on_disk = filled()
    path = "t-0/00000000000000000019.log"
    on_disk.disk.apply(Truncate(path, (on_disk.disk.size_bytes(path) or 0) - 1))
    assert Truncate in map(type, load_effects(on_disk, clean=False))
    assert load_effects(on_disk, clean=False) == []
    assert on_disk.log.log_end_offset == 22


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint"])
@pytest.mark.parametrize("how", ["gone", "empty", "garbage"])
def test_any_lost_file_beside_the_log_is_made_again(clean, suffix, how):
    on_disk = filled()
    before = content(on_disk)
    if clean:
        on_disk.call(on_disk.log.close)
    for name in on_disk.disk.list("t-0"):
        if name.endswith(suffix):
            path = f"t-0/{name}"
            on_disk.disk.apply(Delete(path))
            if how != "gone":
                on_disk.disk.apply(Append(path, 0, b"" if how == "empty" else b"x" * 41))
    load_effects(on_disk, clean=clean)
    # No transaction index is what a segment without an abort has: after a clean stop nobody looks.
    unnoticed = suffix == ".txnindex" and how != "garbage" and clean
    if not unnoticed:
        assert content(on_disk) == before
    on_disk.produce("next", producer=(7, 0, 20))
    load_effects(on_disk, clean=False)
    assert on_disk.log.log_end_offset == before[1] + 1


def test_strays_are_removed():
    on_disk = filled()
    names = on_disk.disk.list("t-0")
    strays = [
        "00000000000000000003.index",
        "00000000000000000003.timeindex",
        "00000000000000000003.txnindex",
        "00000000000000000003.snapshot",
        "00000000000000000999.snapshot",
    ]
    for name in strays:
        on_disk.disk.apply(WriteFile(f"t-0/{name}", b"stray"))
    load_effects(on_disk, clean=False)
    assert on_disk.disk.list("t-0") == names


def test_a_bad_snapshot_is_deleted_and_an_older_one_is_used():
    on_disk = filled()
    on_disk.restart("clean")
    before = content(on_disk)
    snapshots = [n for n in on_disk.disk.list("t-0") if n.endswith(".snapshot")]
    assert len(snapshots) >= 2
    on_disk.disk.apply(WriteFile(f"t-0/{snapshots[-1]}", b"bad"))
    effects = load_effects(on_disk, clean=True)
    assert Delete(f"t-0/{snapshots[-1]}") in effects
    assert content(on_disk) == before


def test_a_snapshot_below_the_log_start_is_not_used():
    """The snapshot says that a transaction is open, but its marker is in the deleted part of the
    log."""
    on_disk = LogOnDisk()
    on_disk.produce("open", producer=(9, 0, 0), transactional=True)
    stray = encode_snapshot(on_disk.log._producers.entries.values())
    on_disk.mark(9, 0, "commit")
    for i in range(20):
        on_disk.produce(f"value {i}" * 3, producer=(7, 0, i))
    on_disk.delete_below(15)
    for name in on_disk.disk.list("t-0"):
        if name.endswith(".snapshot"):
            on_disk.disk.apply(Delete(f"t-0/{name}"))
    on_disk.disk.apply(WriteFile(f"t-0/{snapshot_name(1)}", stray))
    log = on_disk.load(clean=False, log_start_offset=15)
    assert log.last_stable_offset == log.log_end_offset
    assert [p.producer_id for p in log.producers()] == [7]


def test_a_snapshot_is_taken_only_where_the_log_has_moved_on():
    on_disk = LogOnDisk(LogConfig())
    on_disk.produce("a", producer=(7, 0, 0))
    on_disk.checkpoint()
    effects = on_disk.effects()
    on_disk.log.roll(effects)
    snapshots = [o for o in effects.storage if getattr(o, "path", "").endswith(".snapshot")]
    assert snapshots == []


def test_a_snapshot_above_the_cut_is_not_used():
    on_disk = LogOnDisk(LogConfig())
    on_disk.produce("a", producer=(7, 0, 0))
    on_disk.produce("b", producer=(7, 0, 1))
    on_disk.restart("clean")
    path = "t-0/00000000000000000000.log"
    on_disk.disk.apply(Truncate(path, (on_disk.disk.size_bytes(path) or 0) - 1))
    log = on_disk.load(clean=False)
    assert (log.log_end_offset, log.producers()[0].last_sequence) == (1, 0)
    assert not any(n.endswith(".snapshot") for n in on_disk.disk.list("t-0"))
    assert on_disk.append(build_batch("b", producer=(7, 0, 1))).error == ErrorCode.NONE


def test_an_absent_folder_is_made():
    on_disk = filled()
    on_disk.disk.apply(Delete("t-0"))
    log = on_disk.load(clean=False)
    assert (log.log_end_offset, log.producers()) == (0, ())
    assert on_disk.produce("a").base_offset == 0
    assert on_disk.load(clean=False).log_end_offset == 1


def test_a_folder_of_another_topic_is_refused():
    on_disk = filled()
    path = "t-0/partition.metadata"
    on_disk.disk.apply(WriteFile(path, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"))
    with pytest.raises(InconsistentTopicId):
        on_disk.load(clean=True)


def test_a_new_topic_of_an_old_name_begins_empty():
    on_disk = filled()
    fresh = LogOnDisk.__new__(LogOnDisk)
    fresh.config, fresh.disk, fresh.now_ms = SMALL, on_disk.disk, NOW_MS
    fresh.log = fresh._created()
    assert fresh.produce("a").base_offset == 0
    assert fresh.load(clean=False).log_end_offset == 1


def test_the_leader_epoch_survives():
    on_disk = filled()
    on_disk.log.become_leader(4)
    on_disk.produce("a")
    for kind in ("kill", "clean"):
        log = on_disk.restart(kind)
        assert log.leader_epoch == 4
        assert log.end_offset_for_epoch(0) == (0, 23)


def test_an_epoch_whose_batches_were_lost_is_forgotten():
    on_disk = filled()
    path = "t-0/00000000000000000019.log"
    size = on_disk.disk.size_bytes(path) or 0
    on_disk.log.become_leader(4)
    on_disk.produce("a")
    on_disk.disk.apply(Truncate(path, size))
    assert on_disk.load(clean=False).leader_epoch == 0


def test_flush_paths_name_the_log_until_it_is_flushed():
    on_disk = LogOnDisk()
    assert on_disk.log.flush_paths() == ()
    on_disk.produce("a")
    assert on_disk.log.flush_paths() == ("t-0/00000000000000000000.log",)
    on_disk.log.flushed(on_disk.effects())
    assert on_disk.log.flush_paths() == ()
    on_disk.produce("b")
    effects = on_disk.effects()
    on_disk.log.flush(effects)
    on_disk.log.flush(effects)
    assert len(effects.storage) == 1
