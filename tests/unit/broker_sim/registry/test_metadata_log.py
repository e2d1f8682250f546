"""The metadata log: fencing by controller epoch, appends that are asked again, reads."""

from __future__ import annotations

import pytest
from support.core.registry_build import RegistryHost, error_of

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NodeChange,
    OperationType,
    RegistryError,
)
from broker_sim.core.effects import StorageSpace

E = RegistryError


@pytest.fixture
def host():
    return RegistryHost()


@pytest.fixture
def session_id(host):
    opened = host.open().session_id
    host.multi(opened, NodeChange(OperationType.CREATE, CONTROLLER_EPOCH_PATH))
    return opened


def raise_epoch(host, session_id: int, expected: int) -> RegistryError:
    raised = NodeChange(OperationType.SET, CONTROLLER_EPOCH_PATH, b"", expected)
    return error_of(host.multi(session_id, raised))


def test_before_there_was_a_controller_nothing_is_appended(host):
    opened = host.open().session_id
    for epoch in (-1, 0):
        assert error_of(host.append(opened, epoch, 0, b"a")) is E.STALE_CONTROLLER_EPOCH


def test_an_older_controller_is_refused_once_the_epoch_was_raised(host, session_id):
    assert error_of(host.append(session_id, 0, 0, b"a")) is E.NONE
    assert raise_epoch(host, session_id, 0) is E.NONE
    assert raise_epoch(host, session_id, 0) is E.BAD_VERSION
    assert error_of(host.append(session_id, 0, 1, b"b")) is E.STALE_CONTROLLER_EPOCH
    assert error_of(host.append(session_id, 1, 1, b"b")) is E.NONE
    assert host.read(0).records == [b"a", b"b"]


@pytest.mark.parametrize("offset", [-1, 0, 1, 3])
def test_an_append_that_expects_another_end_is_refused_and_learns_the_end(host, session_id, offset):
    host.append(session_id, 0, 0, b"a", b"b")
    answer = host.append(session_id, 0, offset, b"c")
    assert (error_of(answer), answer.log_end_offset) == (E.BAD_OFFSET, 2)
    assert host.read(0).records == [b"a", b"b"]


def test_an_append_whose_answer_was_lost_is_not_carried_out_again(host, session_id):
    for _ in range(2):
        answer = host.append(session_id, 0, 0, b"a", b"b")
        assert (error_of(answer), answer.log_end_offset) == (E.NONE, 2)
        host = host.restarted()
    assert error_of(host.append(session_id, 0, 0, b"a", b"c")) is E.BAD_OFFSET
    assert error_of(host.append(session_id, 0, 1, b"b", b"c")) is E.BAD_OFFSET
    assert host.read(0).records == [b"a", b"b"]


def test_the_same_bytes_of_an_older_controller_are_not_taken_for_ones_own(host, session_id):
    host.append(session_id, 0, 0, b"a")
    raise_epoch(host, session_id, 0)
    assert error_of(host.append(session_id, 1, 0, b"a")) is E.BAD_OFFSET
    assert error_of(host.append(session_id, 1, 1, b"a")) is E.NONE
    assert error_of(host.append(session_id, 1, 1, b"a")) is E.NONE
    assert host.read(0).records == [b"a", b"a"]


def test_a_read_gives_what_fits_and_one_record_at_least(host, session_id):
    host.append(session_id, 0, 0, b"aaa", b"bbb", b"c")
    assert host.read(0, 6).records == [b"aaa", b"bbb"]
    assert host.read(1, 0).records == [b"bbb"]
    answer = host.read(3)
    assert (error_of(answer), answer.records, answer.log_end_offset) == (E.NONE, [], 3)
    for offset in (-1, 4):
        assert error_of(host.read(offset)) is E.OFFSET_OUT_OF_RANGE


def test_with_little_free_space_changes_are_refused_and_sessions_still_end(host, session_id):
    host.step(StorageSpace(is_low=True))
    created = NodeChange(OperationType.CREATE_EPHEMERAL, "/a")
    assert error_of(host.multi(session_id, created)) is E.KAFKA_STORAGE_ERROR
    assert error_of(host.append(session_id, 0, 0, b"a")) is E.KAFKA_STORAGE_ERROR
    assert error_of(host.open()) is E.KAFKA_STORAGE_ERROR
    assert host.heartbeat(session_id) is E.NONE
    host.advance(5_000)
    assert host.heartbeat(session_id) is E.SESSION_EXPIRED
    host.step(StorageSpace(is_low=False))
    assert error_of(host.open()) is E.NONE


# --------------------------------------------------------------------------- snapshots


def test_a_snapshot_takes_the_place_of_the_records_below_its_end(host, session_id):
    host.append(session_id, 0, 0, b"a", b"b", b"c")
    assert error_of(host.write_snapshot(session_id, 0, 2, 0, b"ab")) is E.NONE
    host = host.restarted()
    for offset in (0, 1):
        answer = host.read(offset)
        assert error_of(answer) is E.OFFSET_OUT_OF_RANGE
        assert (answer.log_start_offset, answer.log_end_offset, answer.record_epoch) == (2, 3, 0)
    assert host.read(2).records == [b"c"]
    found = host.read_snapshot()
    assert (found.end_offset, found.record_count, found.records) == (2, 1, [b"ab"])
    assert error_of(host.append(session_id, 0, 3, b"d")) is E.NONE
    assert host.read(2).records == [b"c", b"d"]


def test_a_snapshot_comes_in_parts_and_counts_with_the_last_one(host, session_id):
    host.append(session_id, 0, 0, b"a", b"b", b"c")
    assert error_of(host.write_snapshot(session_id, 0, 3, 0, b"1", b"2", is_last=False)) is E.NONE
    assert host.read(0).records == [b"a", b"b", b"c"]
    assert error_of(host.write_snapshot(session_id, 0, 3, 1, b"x")) is E.BAD_OFFSET
    assert error_of(host.write_snapshot(session_id, 0, 2, 2, b"x")) is E.BAD_OFFSET
    for _ in range(2):  # also when the answer to the last part was lost
        assert error_of(host.write_snapshot(session_id, 0, 3, 2, b"3")) is E.NONE
    assert host.read_snapshot().records == [b"1", b"2", b"3"]


def test_a_snapshot_in_parts_is_begun_again_after_a_restart(host, session_id):
    host.append(session_id, 0, 0, b"a")
    host.write_snapshot(session_id, 0, 1, 0, b"1", is_last=False)
    host = host.restarted()
    assert error_of(host.write_snapshot(session_id, 0, 1, 1, b"2")) is E.BAD_OFFSET
    assert error_of(host.write_snapshot(session_id, 0, 1, 0, b"1", is_last=False)) is E.NONE
    assert error_of(host.write_snapshot(session_id, 0, 1, 0, b"3", b"4")) is E.NONE
    assert host.read_snapshot().records == [b"3", b"4"]


def test_a_snapshot_of_an_older_controller_or_beyond_the_log_is_refused(host, session_id):
    host.append(session_id, 0, 0, b"a", b"b")
    assert error_of(host.write_snapshot(session_id, 0, 3, 0, b"x")) is E.OFFSET_OUT_OF_RANGE
    assert error_of(host.write_snapshot(session_id, 1, 2, 0, b"x")) is E.STALE_CONTROLLER_EPOCH
    assert error_of(host.write_snapshot(session_id, -1, 2, 0, b"x")) is E.STALE_CONTROLLER_EPOCH
    host.write_snapshot(session_id, 0, 2, 0, b"ab")
    assert error_of(host.write_snapshot(session_id, 0, 1, 0, b"a")) is E.OFFSET_OUT_OF_RANGE
    raise_epoch(host, session_id, 0)
    host.append(session_id, 1, 2, b"c")
    assert error_of(host.write_snapshot(session_id, 0, 3, 0, b"x")) is E.STALE_CONTROLLER_EPOCH
    assert host.read_snapshot().records == [b"ab"]
    host.step(StorageSpace(is_low=True))
    assert error_of(host.write_snapshot(session_id, 1, 3, 0, b"x")) is E.KAFKA_STORAGE_ERROR


def test_an_append_whose_records_a_snapshot_has_replaced_is_known_by_its_epoch(host, session_id):
    host.append(session_id, 0, 0, b"a")
    host.append(session_id, 0, 1, b"b")
    raise_epoch(host, session_id, 0)
    host.append(session_id, 1, 2, b"c")
    host.write_snapshot(session_id, 1, 3, 0, b"abc")
    assert [host.read(offset).record_epoch for offset in range(4)] == [0, 0, 1, -1]
    assert error_of(host.append(session_id, 1, 2, b"c")) is E.NONE
    assert error_of(host.append(session_id, 1, 1, b"x")) is E.BAD_OFFSET
    assert host.read(3).log_end_offset == 3


def test_a_snapshot_is_read_in_parts_and_another_one_from_its_beginning(host, session_id):
    host.append(session_id, 0, 0, b"a", b"b")
    assert (host.read_snapshot().end_offset, host.read_snapshot().record_count) == (0, 0)
    host.write_snapshot(session_id, 0, 1, 0, b"1", b"22", b"3")
    first = host.read_snapshot(1, 0, 3)
    assert (first.position, first.records) == (0, [b"1", b"22"])
    second = host.read_snapshot(1, 2, 3)
    assert (second.position, second.records) == (2, [b"3"])
    host.write_snapshot(session_id, 0, 2, 0, b"123")
    other = host.read_snapshot(1, 2, 3)
    assert (other.end_offset, other.position, other.records) == (2, 0, [b"123"])
    assert host.read_snapshot(2, -1, 3).records == [b"123"]
