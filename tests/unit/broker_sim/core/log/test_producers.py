"""Epochs, sequences, duplicates and verification of a producer on one partition."""

from __future__ import annotations

import pytest
from support.core.log_build import LogOnDisk, build_batch

from broker_sim.core.log import AppendOrigin, LogConfig
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode

MAX = records.SEQUENCE_MAX
OOO = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def send(on_disk: LogOnDisk, epoch: int, sequence: int, count: int = 1, **more):
    transactional = more.pop("transactional", False)
    values = [f"{epoch}:{sequence}:{i}" for i in range(count)]
    batch = build_batch(*values, producer=(7, epoch, sequence), transactional=transactional)
    return on_disk.append(batch, **more)


@pytest.mark.invariant(13)
def test_the_next_sequence_is_accepted_and_a_gap_is_refused():
    on_disk = LogOnDisk()
    assert send(on_disk, 0, 0, 3).error == ErrorCode.NONE
    assert send(on_disk, 0, 4).error == OOO
    assert send(on_disk, 0, 2).error == OOO
    assert send(on_disk, 0, 3).error == ErrorCode.NONE


def test_a_producer_nothing_is_known_of_may_start_anywhere():
    assert send(LogOnDisk(), 5, 1234).error == ErrorCode.NONE


@pytest.mark.invariant(13)
def test_a_new_epoch_starts_at_zero():
    on_disk = LogOnDisk()
    send(on_disk, 0, 0)
    assert send(on_disk, 1, 1).error == OOO
    assert send(on_disk, 1, 0).error == ErrorCode.NONE


@pytest.mark.invariant(15)
def test_an_old_epoch_is_fenced():
    on_disk = LogOnDisk()
    send(on_disk, 1, 0)
    result = send(on_disk, 0, 1)
    assert result.error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert on_disk.log.log_end_offset == 1


@pytest.mark.invariant(14)
def test_each_of_the_last_five_batches_is_answered_with_its_old_offset():
    on_disk = LogOnDisk()
    for sequence in range(0, 12, 2):
        send(on_disk, 0, sequence, 2)
    for sequence in range(2, 12, 2):
        again = send(on_disk, 0, sequence, 2)
        assert (again.error, again.duplicate) == (ErrorCode.NONE, True)
        assert (again.base_offset, again.last_offset) == (sequence, sequence + 1)
    sixth = send(on_disk, 0, 0, 2)
    assert (sixth.error, sixth.duplicate) == (OOO, False)
    assert on_disk.log.log_end_offset == 12


def test_other_boundaries_are_no_duplicate():
    on_disk = LogOnDisk()
    send(on_disk, 0, 0, 4)
    assert send(on_disk, 0, 0, 2).error == OOO
    assert send(on_disk, 0, 2, 2).error == OOO


def test_an_old_batch_in_a_new_epoch_is_no_duplicate():
    on_disk = LogOnDisk()
    send(on_disk, 0, 0)
    send(on_disk, 1, 0)
    assert send(on_disk, 0, 0).error == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.invariant(13)
@pytest.mark.parametrize("count", range(1, 6))
def test_the_sequence_wraps_to_zero(count):
    on_disk = LogOnDisk()
    send(on_disk, 0, MAX - 1, count)
    following = (MAX - 1 + count) % (MAX + 1)
    assert send(on_disk, 0, MAX - 1, count).duplicate
    assert send(on_disk, 0, (following + 1) % (MAX + 1)).error == OOO
    assert send(on_disk, 0, following).error == ErrorCode.NONE
    assert on_disk.restart("clean").producers()[0].last_sequence == following


def test_a_wrapping_batch_is_a_duplicate_after_a_restart_from_the_snapshot():
    on_disk = LogOnDisk()
    send(on_disk, 0, MAX - 1, 5)
    on_disk.restart("clean")
    assert send(on_disk, 0, MAX - 1, 5).duplicate
    assert send(on_disk, 0, 3).error == ErrorCode.NONE


def test_batches_of_one_append_are_checked_one_after_another():
    on_disk = LogOnDisk()
    one, two = (build_batch("x", producer=(7, 0, s)) for s in (0, 1))
    gap = build_batch("x", producer=(7, 0, 3))
    assert on_disk.append(one + gap).error == OOO
    assert on_disk.log.log_end_offset == 0
    assert on_disk.append(one + two).error == ErrorCode.NONE
    assert on_disk.append(two).duplicate


def test_a_plain_batch_within_a_transaction_is_refused():
    on_disk = LogOnDisk()
    send(on_disk, 0, 0, transactional=True)
    result = send(on_disk, 0, 1)
    assert result.error == ErrorCode.INVALID_TXN_STATE
    assert on_disk.log.producers()[0].last_sequence == 0


def test_coordinators_are_checked_for_the_epoch_only():
    on_disk = LogOnDisk()
    origin = AppendOrigin.COORDINATOR
    batch = [
        records.encode_batch(
            [records.Record(b"k", b"v", 1)],
            producer_id=7,
            producer_epoch=epoch,
            transactional=True,
        )
        for epoch in (0, 1)
    ]
    assert on_disk.append(batch[1], origin=origin).error == ErrorCode.NONE
    assert on_disk.append(batch[1], origin=origin).duplicate is False
    fenced = on_disk.append(batch[0], origin=origin)
    assert fenced.error == ErrorCode.INVALID_PRODUCER_EPOCH


# --------------------------------------------------------------------------- verification


def begin_verification(on_disk: LogOnDisk, epoch: int, sequence: int, *, bumps: bool = False):
    begin = on_disk.log.verification.begin
    return begin(7, epoch, sequence, on_disk.now_ms, supports_epoch_bump=bumps)


def test_a_later_batch_may_not_overtake_one_that_was_refused():
    on_disk = LogOnDisk()
    assert begin_verification(on_disk, 0, 0) is None
    assert begin_verification(on_disk, 0, 5) is None
    assert send(on_disk, 0, 5, transactional=True).error == OOO
    assert send(on_disk, 0, 0, 5, transactional=True).error == ErrorCode.NONE
    assert send(on_disk, 0, 5, transactional=True).error == ErrorCode.NONE


def test_under_transaction_version_2_an_unknown_producer_starts_at_zero():
    on_disk = LogOnDisk()
    begin_verification(on_disk, 0, 3, bumps=True)
    assert send(on_disk, 0, 3, transactional=True).error == OOO
    assert send(on_disk, 0, 0, transactional=True).error == ErrorCode.NONE


def test_what_was_refused_in_an_older_epoch_does_not_hold_the_newer_one_back():
    on_disk = LogOnDisk()
    begin_verification(on_disk, 0, 0)
    begin_verification(on_disk, 1, 4)
    assert send(on_disk, 1, 4, transactional=True).error == ErrorCode.NONE


def test_an_older_epoch_is_refused_before_it_is_verified():
    on_disk = LogOnDisk()
    send(on_disk, 3, 0)
    assert begin_verification(on_disk, 2, 0).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert begin_verification(on_disk, 3, 1) is None


def test_the_marker_before_the_next_transaction_of_version_2_does_not_forget_its_sequence():
    on_disk = LogOnDisk()
    send(on_disk, 0, 0, transactional=True)
    begin_verification(on_disk, 1, 2, bumps=True)
    on_disk.mark(7, 1, "commit")
    assert send(on_disk, 1, 3, transactional=True).error == OOO
    begin_verification(on_disk, 1, 0, bumps=True)
    assert send(on_disk, 1, 0, transactional=True).error == ErrorCode.NONE


def test_a_marker_with_the_last_epoch_ends_what_that_epoch_began():
    """A forged epoch alone can be 32767 in data; the epoch cannot rise any more."""
    on_disk = LogOnDisk()
    for epoch, expected in ((32766, ErrorCode.INVALID_PRODUCER_EPOCH), (32767, ErrorCode.NONE)):
        send(on_disk, epoch, 0, transactional=True)
        assert on_disk.mark(7, epoch, "abort", tv=2).error == expected


# --------------------------------------------------------------------------- expiry


def test_an_idle_producer_is_forgotten_unless_a_transaction_is_open():
    on_disk = LogOnDisk(LogConfig(producer_id_expiration_ms=1000))
    send(on_disk, 0, 0)
    on_disk.append(build_batch("x", producer=(8, 0, 0), transactional=True))
    on_disk.now_ms += 999
    on_disk.log.expire_producers(on_disk.effects())
    assert len(on_disk.log.producers()) == 2
    on_disk.now_ms += 1
    on_disk.log.expire_producers(on_disk.effects())
    assert [p.producer_id for p in on_disk.log.producers()] == [8]
    assert send(on_disk, 0, 77).error == ErrorCode.NONE


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_that_expired_while_the_broker_was_down_is_not_known_after_the_start(is_clean):
    on_disk = LogOnDisk(LogConfig(producer_id_expiration_ms=1000))
    send(on_disk, 0, 0)
    on_disk.append(build_batch("x", producer=(8, 0, 0), transactional=True))
    if is_clean:
        on_disk.call(on_disk.log.close)
    on_disk.now_ms += 1000
    on_disk.load(clean=is_clean)
    assert [p.producer_id for p in on_disk.log.producers()] == [8]
    assert send(on_disk, 0, 77).error == ErrorCode.NONE


def test_a_refused_sequence_is_forgotten_when_a_producer_id_would_be():
    on_disk = LogOnDisk(LogConfig(producer_id_expiration_ms=1000))
    begin_verification(on_disk, 0, 0)
    on_disk.now_ms += 999
    on_disk.log.expire_producers(on_disk.effects())
    assert send(on_disk, 0, 5, transactional=True).error == OOO
    on_disk.now_ms += 1
    on_disk.log.expire_producers(on_disk.effects())
    assert send(on_disk, 0, 5, transactional=True).error == ErrorCode.NONE


def test_the_batches_of_an_old_epoch_are_no_duplicates_of_the_next():
    on_disk = LogOnDisk()
    send(on_disk, 0, 0, 2)
    on_disk.mark(7, 1, "abort")
    first = send(on_disk, 1, 0, 2)
    assert (first.error, first.duplicate, first.base_offset) == (ErrorCode.NONE, False, 3)
    again = send(on_disk, 1, 0, 2)
    assert (again.duplicate, again.base_offset) == (True, 3)


def test_what_a_leader_has_taken_a_follower_never_refuses():
    follower = LogOnDisk()
    send(follower, 5, 0, transactional=True)
    batches = [
        build_batch("a gap in the sequence", producer=(7, 5, 9), transactional=True),
        build_batch("outside of the open transaction", producer=(7, 5, 3)),
        build_batch("an old epoch", producer=(7, 4, 0)),
        build_batch("the same batch again", producer=(7, 4, 0)),
        build_batch("a transaction without a verification", producer=(6, 0, 8), transactional=True),
    ]
    for batch in batches:
        copied = bytearray(batch)
        end = follower.log.log_end_offset
        records.stamp_offsets(copied, 0, base_offset=end, leader_epoch=0)
        result = follower.replicate(bytes(copied))
        assert (result.error, result.duplicate, result.base_offset) == (
            ErrorCode.NONE, False, end,
        )  # fmt: skip


def test_an_emptied_control_batch_changes_nothing():
    """Compaction takes the marker out of a batch that it keeps for its producer's sequence."""
    follower = LogOnDisk()
    send(follower, 0, 0, transactional=True)
    before = follower.log.producers()
    marker = records.TransactionMarker(7, 0, records.MarkerType.ABORT, 3)
    data = records.encode_marker(marker, timestamp=99)
    header = records.parse_header(data)
    emptied = header._replace(
        base_offset=1, leader_epoch=0, record_count=0,
        length=records.HEADER_BYTES - records.LENGTH_END,
    )  # fmt: skip
    batch = bytearray(records.encode_header(emptied))
    records.refresh_crc(batch, 0, len(batch))
    result = follower.replicate(bytes(batch))
    assert result.error == ErrorCode.NONE
    assert (follower.log.log_end_offset, follower.log.last_stable_offset) == (2, 0)
    assert follower.log.producers() == before
    for kind in ("kill", "clean"):
        follower.restart(kind)
        assert (follower.log.last_stable_offset, follower.log.producers()) == (0, before)


def test_a_marker_keeps_a_producer_and_its_coordinator_epoch_alive():
    on_disk = LogOnDisk(LogConfig(producer_id_expiration_ms=1000))
    send(on_disk, 0, 0, transactional=True)
    on_disk.now_ms += 5000
    on_disk.mark(7, 0, "abort", coordinator_epoch=4)
    on_disk.log.expire_producers(on_disk.effects())
    (view,) = on_disk.log.producers()
    assert (view.coordinator_epoch, view.last_timestamp) == (4, on_disk.now_ms)
