"""A follower's side of a fetch session: what each request says, and after which answer."""

from __future__ import annotations

import pytest

from broker_sim.core.replica.fetch_session import INITIAL_EPOCH, INVALID_SESSION_ID
from broker_sim.core.replica.follower_session import FetchParameters, FollowerSession, Key
from txnlog_kafka.wire.error_codes import ErrorCode

ID = b"0" * 16


def key(number: int) -> Key:
    return (ID, number)


def at(offset: int) -> FetchParameters:
    return FetchParameters(offset, 0, 0, 0, 1000)


def asked(session: FollowerSession) -> tuple[int, int, dict[int, int], list[int]]:
    """Session, epoch, offsets by partition and what is forgotten, of the next request."""
    named, forgotten = session.next_request()
    return (
        session.session_id,
        session.epoch,
        {number: position.fetch_offset for (_, number), position in named.items()},
        [number for _, number in forgotten],
    )


def begun(*numbers: int) -> FollowerSession:
    """Session 7 is open, with these partitions, each from offset 0."""
    session = FollowerSession()
    for number in numbers:
        session.want(key(number), at(0))
    assert asked(session) == (INVALID_SESSION_ID, INITIAL_EPOCH, dict.fromkeys(numbers, 0), [])
    session.on_answer(7)
    return session


def test_at_first_all_is_named_and_then_what_has_changed() -> None:
    session = begun(0, 1, 2)
    assert asked(session) == (7, 1, {}, [])
    session.on_answer(7)
    session.want(key(1), at(5))
    session.want(key(2), at(0))
    session.want(key(3), at(0))
    session.forget(key(0))
    assert asked(session) == (7, 2, {1: 5, 3: 0}, [0])
    assert session.asked(key(1)) == at(5)
    assert session.asked(key(0)) is None


@pytest.mark.parametrize(
    ("changes", "named", "forgotten"),
    [
        ([(0, 5), (0, 0)], {}, []),
        ([(0, None), (0, 0)], {}, []),
        ([(0, None), (0, 5)], {0: 5}, []),
        ([(0, 5), (0, None)], {}, [0]),
        ([(9, 0), (9, None)], {}, []),
        ([(9, None)], {}, []),
    ],
)
def test_what_is_changed_twice_before_a_request(changes, named, forgotten) -> None:
    session = begun(0, 1)
    for number, offset in changes:
        if offset is None:
            session.forget(key(number))
        else:
            session.want(key(number), at(offset))
    assert asked(session) == (7, 1, named, forgotten)


def test_what_changes_while_a_request_is_under_way_is_said_by_the_next() -> None:
    session = begun(0)
    asked(session)
    session.want(key(0), at(3))
    assert session.asked(key(0)) == at(0)
    session.on_answer(7)
    assert asked(session) == (7, 2, {0: 3}, [])


@pytest.mark.parametrize(
    ("error", "closes"),
    [
        (None, 7),
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, INVALID_SESSION_ID),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 7),
    ],
)
def test_after_a_failure_all_is_named_again(error: ErrorCode | None, closes: int) -> None:
    session = begun(0, 1, 2)
    session.want(key(0), at(5))
    session.forget(key(2))
    asked(session)
    session.on_failed(error)
    assert asked(session) == (closes, INITIAL_EPOCH, {1: 0, 0: 5}, [])
    session.on_answer(8)
    assert asked(session) == (8, 1, {}, [])


def test_a_leader_without_sessions_is_asked_for_all_and_first_for_what_has_not_moved() -> None:
    session = begun(0, 1, 2)
    session.on_answer(INVALID_SESSION_ID)
    session.want(key(0), at(4))
    assert asked(session) == (INVALID_SESSION_ID, INITIAL_EPOCH, {1: 0, 2: 0, 0: 4}, [])
    _, _, offsets, _ = asked(session)
    assert [*offsets] == [1, 2, 0]


def test_whether_anything_is_wanted() -> None:
    session = FollowerSession()
    assert session.is_empty
    session.want(key(0), at(0))
    assert not session.is_empty
    asked(session)
    session.forget(key(0))
    assert session.is_empty
    session.want(key(1), at(0))
    assert not session.is_empty
    session.on_answer(7)
    assert asked(session) == (7, 1, {1: 0}, [0])
