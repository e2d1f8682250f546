"""Markers, the last stable offset and the aborted-transaction index of one partition."""

from __future__ import annotations

import pytest
from support.core.log_build import LogOnDisk, build_batch

from broker_sim.core.log import AbortedTransaction
from txnlog_kafka.wire.error_codes import ErrorCode

FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


def begin(on_disk: LogOnDisk, producer_id: int, epoch: int = 0, sequence: int = 0) -> int:
    batch = build_batch("x", producer=(producer_id, epoch, sequence), transactional=True)
    result = on_disk.append(batch)
    assert result.error == ErrorCode.NONE, result
    return result.base_offset


@pytest.mark.invariant(26)
def test_the_last_stable_offset_is_the_first_of_the_oldest_open_transaction():
    on_disk = LogOnDisk()
    log = on_disk.log
    on_disk.produce("plain")
    begin(on_disk, 7)
    begin(on_disk, 8)
    assert (log.first_unstable_offset, log.last_stable_offset) == (1, 1)
    assert log.has_open_transaction(7)
    on_disk.mark(7, 0, "commit")
    assert log.last_stable_offset == 2
    on_disk.mark(8, 0, "abort")
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 5)
    assert not log.has_open_transaction(8)


@pytest.mark.invariant(27)
def test_a_read_committed_fetch_stops_at_the_lso_and_names_the_aborted():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    on_disk.mark(7, 0, "abort")
    begin(on_disk, 8)
    read = on_disk.read(0, committed=True)
    assert read.aborted == (AbortedTransaction(7, 0, 1, 2),)
    assert (read.last_stable_offset, read.high_watermark) == (2, 3)
    assert on_disk.consume(0, committed=True) == []
    assert on_disk.consume(0, committed=False) == [(0, "x"), (2, "x")]
    assert on_disk.read(0, committed=False).aborted is None
    assert on_disk.read(2, committed=True).aborted == ()


def test_the_entry_says_what_the_lso_became():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    begin(on_disk, 8)
    on_disk.mark(8, 0, "abort")
    on_disk.mark(7, 0, "abort")
    assert on_disk.read(0, committed=True).aborted == (
        AbortedTransaction(8, 1, 2, 0),
        AbortedTransaction(7, 0, 3, 4),
    )


def test_a_marker_in_a_later_segment_is_found_from_the_data():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    for _ in range(40):
        on_disk.produce("filler" * 10)
    on_disk.mark(7, 0, "abort")
    begin(on_disk, 8)
    read = on_disk.read(0, committed=True, max_bytes=1)
    assert [a.producer_id for a in read.aborted or ()] == [7]
    assert len(on_disk.disk.list("t-0")) > 10


def test_a_marker_without_data_moves_the_lso_only_as_a_batch():
    on_disk = LogOnDisk()
    assert on_disk.mark(7, 3, "abort").base_offset == 0
    assert on_disk.read(0, committed=True).aborted == ()
    assert on_disk.log.last_stable_offset == 1
    (view,) = on_disk.log.producers()
    assert (view.producer_epoch, view.last_sequence, view.current_txn_start_offset) == (3, -1, -1)


@pytest.mark.invariant(15)
def test_an_older_producer_epoch_is_fenced():
    on_disk = LogOnDisk()
    begin(on_disk, 7, epoch=2)
    assert on_disk.mark(7, 1, "commit").error == FENCED
    assert on_disk.log.has_open_transaction(7)


@pytest.mark.invariant(17)
def test_an_older_coordinator_is_fenced():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    on_disk.mark(7, 0, "commit", coordinator_epoch=5)
    begin(on_disk, 7, sequence=1)
    late = on_disk.mark(7, 0, "abort", coordinator_epoch=4)
    assert late.error == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert on_disk.log.has_open_transaction(7)
    assert on_disk.mark(7, 0, "commit", coordinator_epoch=5).error == ErrorCode.NONE


@pytest.mark.parametrize("kind", ["commit", "abort"])
def test_version_1_takes_the_epoch_of_the_data(kind):
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    assert on_disk.mark(7, 0, kind, tv=1).error == ErrorCode.NONE
    assert on_disk.mark(7, 0, kind, tv=1).error == ErrorCode.NONE
    assert not on_disk.log.has_open_transaction(7)


def test_version_2_takes_a_marker_again_when_no_transaction_is_open():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    on_disk.mark(7, 1, "abort", tv=2)
    again = on_disk.mark(7, 1, "abort", tv=2)
    assert (again.error, again.base_offset) == (ErrorCode.NONE, 2)
    assert len(on_disk.read(0, committed=True).aborted or ()) == 1


@pytest.mark.invariant(23)
def test_version_2_keeps_a_late_marker_out_of_the_next_transaction():
    """A marker needs an epoch above the data's, which no marker of an earlier transaction has."""
    on_disk = LogOnDisk()
    for epoch, kind in enumerate(("commit", "abort")):
        begin(on_disk, 7, epoch=epoch)
        assert on_disk.mark(7, epoch, kind, tv=2).error == FENCED
        assert on_disk.log.has_open_transaction(7)
        assert on_disk.mark(7, epoch + 1, "commit", tv=2).error == ErrorCode.NONE
        assert not on_disk.log.has_open_transaction(7)


def test_after_a_bump_the_producer_starts_at_sequence_zero():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    on_disk.mark(7, 1, "commit", tv=2)
    late = on_disk.append(build_batch("x", producer=(7, 0, 1), transactional=True))
    assert late.error == FENCED
    skipped = on_disk.append(build_batch("x", producer=(7, 1, 1), transactional=True))
    assert skipped.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    begin(on_disk, 7, epoch=1)


def test_a_version_1_marker_keeps_the_window_of_duplicates():
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    on_disk.mark(7, 0, "commit")
    again = on_disk.append(build_batch("x", producer=(7, 0, 0), transactional=True))
    assert again.duplicate
    assert not on_disk.log.has_open_transaction(7)


def test_has_open_transaction_can_ask_for_the_epoch():
    on_disk = LogOnDisk()
    begin(on_disk, 7, epoch=3)
    assert on_disk.log.has_open_transaction(7, 3)
    assert not on_disk.log.has_open_transaction(7, 4)


def test_a_decided_transaction_is_unstable_until_its_marker_is_replicated():
    on_disk = LogOnDisk()
    log = on_disk.log
    log.single_replica = False
    begin(on_disk, 7)
    on_disk.mark(7, 0, "commit")
    log.advance_high_watermark(1, on_disk.effects())
    assert (log.first_unstable_offset, log.last_stable_offset) == (0, 0)
    log.advance_high_watermark(2, on_disk.effects())
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 2)


@pytest.mark.invariant(26, 27)
@pytest.mark.parametrize("kind", ["clean", "kill", "power"])
def test_open_transactions_and_aborted_ones_are_known_after_a_restart(kind):
    on_disk = LogOnDisk()
    begin(on_disk, 7)
    on_disk.mark(7, 0, "abort", coordinator_epoch=3)
    on_disk.produce("plain")
    begin(on_disk, 8, epoch=2)
    log = on_disk.restart(kind)
    assert (log.last_stable_offset, log.log_end_offset) == (3, 4)
    assert log.has_open_transaction(8)
    assert on_disk.read(0, committed=True).aborted == (AbortedTransaction(7, 0, 1, 2),)
    stale = on_disk.mark(7, 0, "abort", coordinator_epoch=2)
    assert stale.error == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    on_disk.mark(8, 2, "commit")
    assert on_disk.consume(0, committed=True) == [(2, "plain"), (3, "x")]
