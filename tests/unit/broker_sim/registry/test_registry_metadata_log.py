"""The metadata log: fencing by controller epoch, appends that are asked again, reads."""

from __future__ import annotations

import pytest
from support.registry_build import RegistryHost, error_of

from broker_sim.apis.registry import (
    CONTROLLER_EPOCH_PATH,
    Operation,
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
    host.multi(opened, Operation(OperationType.CREATE, CONTROLLER_EPOCH_PATH))
    return opened


def raise_epoch(host, session_id: int, expected: int) -> RegistryError:
    raised = Operation(OperationType.SET, CONTROLLER_EPOCH_PATH, b"", expected)
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
    created = Operation(OperationType.CREATE_EPHEMERAL, "/a")
    assert error_of(host.multi(session_id, created)) is E.KAFKA_STORAGE_ERROR
    assert error_of(host.append(session_id, 0, 0, b"a")) is E.KAFKA_STORAGE_ERROR
    assert error_of(host.open()) is E.KAFKA_STORAGE_ERROR
    assert host.heartbeat(session_id) is E.NONE
    host.advance(5_000)
    assert host.heartbeat(session_id) is E.SESSION_EXPIRED
    host.step(StorageSpace(is_low=False))
    assert error_of(host.open()) is E.NONE
