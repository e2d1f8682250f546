"""Leader epochs around the log start, below which a follower may have batches its leader lacks.

An unclean election makes a leader of broker A, which lacks records. A writes records in a new
epoch, DeleteRecords deletes them, and A dies. Another unclean election brings back broker B with
the records of the old epoch. A now follows B. A cannot truncate below its own log start without
losing its knowledge of producers. So A keeps its files, and appends B's records of the old epoch
behind its own newer epoch.
"""

from __future__ import annotations

import pytest
from support.core.log_build import LogOnDisk, build_batch

from broker_sim.core.effects import WriteFile
from txnlog_kafka.wire.records import stamp_offsets


def replicate(on_disk: LogOnDisk, leader_epoch: int) -> None:
    """Append one more record as a follower, from a leader with this epoch."""
    batch = bytearray(build_batch("x", producer=(7, 0, on_disk.log.log_end_offset)))
    at = on_disk.log.log_end_offset
    stamp_offsets(batch, 0, base_offset=at, leader_epoch=leader_epoch)
    assert on_disk.replicate(bytes(batch)).ok


def follower(*leader_epochs: int) -> LogOnDisk:
    """Return a follower's log with one record of each of these leader epochs."""
    on_disk = LogOnDisk()
    on_disk.log.single_replica = False
    for leader_epoch in leader_epochs:
        replicate(on_disk, leader_epoch)
    return on_disk


def delete(on_disk: LogOnDisk, offset: int) -> None:
    """Delete the records below an offset, as DeleteRecords does."""
    on_disk.call(on_disk.log.advance_high_watermark, offset)
    on_disk.delete_below(offset)


def truncate(on_disk: LogOnDisk, offset: int) -> None:
    on_disk.call(on_disk.log.truncate_to, offset)


def test_an_older_epoch_at_the_log_start_is_no_damage():
    on_disk = follower(1, 1, 1)
    delete(on_disk, 2)
    on_disk.load(clean=False, log_start_offset=2)  # it forgets what lies below
    on_disk.log.single_replica = False
    truncate(on_disk, 2)
    assert on_disk.log.latest_epoch == -1
    for leader_epoch in (0, 0, 2):
        replicate(on_disk, leader_epoch)
    known = on_disk.log.producers()
    for _ in range(2):
        log = on_disk.load(clean=False, recovery_point=0, log_start_offset=2)
        assert (log.log_start_offset, log.log_end_offset) == (2, 5)
        assert log.producers() == known
        assert [log.end_offset_for_epoch(epoch) for epoch in (0, 1)] == [(0, 4), (0, 4)]
        for name in on_disk.disk.list("t-0"):  # from the log alone the second time
            if name == "segment-state-checkpoint":
                on_disk.disk.apply(WriteFile(f"t-0/{name}", b""))


def test_an_older_epoch_above_the_log_start_is_damage():
    on_disk = follower(1, 1, 1)
    delete(on_disk, 2)
    replicate(on_disk, 0)
    log = on_disk.load(clean=False, recovery_point=0, log_start_offset=2)
    assert log.log_end_offset == 3


@pytest.mark.parametrize("start", [3, 5])
def test_a_log_start_that_was_lowered_for_a_truncation_that_did_not_begin_has_its_epochs(start):
    on_disk = follower(0, 1, 1, 2, 3)
    on_disk.load(clean=False, recovery_point=0, log_start_offset=start)
    on_disk.checkpoint()
    for _ in range(2):
        log = on_disk.load(clean=False, log_start_offset=1)
        assert (log.log_start_offset, log.log_end_offset) == (1, 5)
        found = [log.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 3)]
        assert found == [(0, 1), (1, 3), (2, 4), (3, 5)]


def test_an_epoch_of_the_states_that_ends_at_the_log_start_is_forgotten():
    on_disk = follower(1, 1)
    on_disk.checkpoint()
    delete(on_disk, 2)
    on_disk.load(clean=False, log_start_offset=2)
    assert on_disk.log.latest_epoch == -1
    replicate(on_disk, 0)
    log = on_disk.load(clean=False, log_start_offset=2)
    assert log.end_offset_for_epoch(0) == (0, 3)


def test_an_epoch_without_a_record_is_forgotten_by_a_truncation_to_the_log_end():
    """Otherwise the leader, which lacks the epoch, would answer every fetch with a truncation."""
    on_disk = follower(1, 1)
    on_disk.call(on_disk.log.roll)
    delete(on_disk, 2)
    assert on_disk.log.latest_epoch == 1
    truncate(on_disk, 2)
    assert on_disk.log.latest_epoch == -1
    replicate(on_disk, 0)
    assert on_disk.log.end_offset_for_epoch(0) == (0, 3)
