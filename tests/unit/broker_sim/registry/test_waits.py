"""Waiting for a change: answered by what changed, by the deadline, by the end of the session."""

from __future__ import annotations

import pytest
from support.core.broker_build import request
from support.core.registry_build import K, RegistryHost, error_of

from broker_sim.apis import RegistryApiKey
from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    NodeChange,
    OperationType,
    RegistryError,
)
from txnlog_kafka.wire.messages import ApiKey

CREATE = OperationType.CREATE


@pytest.fixture
def host():
    return RegistryHost()


@pytest.fixture
def session_id(host):
    return host.open(9_000).session_id


def position(host) -> tuple[int, int]:
    answer = host.call(K.REGISTRY_GET_NODES, session_id=NO_SESSION, paths=[], prefix=None)
    return answer.zxid, answer.log_end_offset


def answered(host, connection: int = 7) -> list[tuple[RegistryError, int, int]]:
    """Return the answers to waits on a connection: error, zxid and log end offset."""
    told = [each for (asked, _), each in host.asked.answers.items() if asked == connection]
    return [(error_of(each), each.zxid, each.log_end_offset) for each in told]


def test_a_change_after_what_was_seen_is_answered_at_once(host, session_id):
    zxid, end = position(host)
    host.multi(session_id, NodeChange(CREATE, "/a"))
    answer = host.wait(session_id, zxid, end)
    assert (answer.zxid, answer.log_end_offset) == position(host) != (zxid, end)


@pytest.mark.parametrize("change", ["create", "expiry of another", "append"])
def test_a_wait_is_answered_by_any_later_change_of_nodes_or_of_the_log(host, session_id, change):
    other_id = host.open(1_000).session_id
    host.multi(other_id, NodeChange(OperationType.CREATE_EPHEMERAL, "/e"))
    host.multi(session_id, NodeChange(CREATE, CONTROLLER_EPOCH_PATH))
    before = position(host)
    assert host.wait(session_id, *before, max_wait_ms=3_000) is None
    host.heartbeat(session_id)
    assert answered(host) == []
    if change == "create":
        host.multi(session_id, NodeChange(CREATE, "/a"))
    elif change == "append":
        host.append(session_id, 0, 0, b"r")
    else:
        host.advance(1_000)
    assert answered(host) == [(RegistryError.NONE, *position(host))]
    assert position(host) != before
    host.advance(3_000)
    assert len(answered(host)) == 1


def test_a_session_that_opens_or_closes_without_nodes_wakes_nobody(host, session_id):
    assert host.wait(session_id, *position(host)) is None
    opened = host.open().session_id
    host.call(K.REGISTRY_CLOSE_SESSION, session_id=opened)
    assert answered(host) == []


@pytest.mark.parametrize(("asked_ms", "waited_ms"), [(200, 200), (60_000, 3_000)])
def test_a_wait_ends_at_its_deadline_or_after_a_third_of_the_timeout(
    host, session_id, asked_ms, waited_ms
):
    before = position(host)
    assert host.wait(session_id, *before, max_wait_ms=asked_ms) is None
    host.advance(waited_ms - 1)
    assert answered(host) == []
    host.advance(1)
    assert answered(host) == [(RegistryError.NONE, *before)]


@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_a_wait_without_time_is_answered_at_once(host, session_id, max_wait_ms):
    before = position(host)
    answer = host.wait(session_id, *before, max_wait_ms=max_wait_ms)
    assert (answer.zxid, answer.log_end_offset) == before


def test_the_end_of_a_session_answers_its_waits_and_no_others(host, session_id):
    other_id = host.open().session_id
    before = position(host)
    host.wait(session_id, *before, connection=7)
    host.wait(other_id, *before, connection=8)
    host.call(K.REGISTRY_CLOSE_SESSION, session_id=session_id)
    assert answered(host, 7) == [(RegistryError.SESSION_EXPIRED, *before)]
    assert answered(host, 8) == []


def test_a_connection_that_is_gone_waits_no_more(host, session_id):
    host.wait(session_id, *position(host))
    host.disconnect(7)
    host.multi(session_id, NodeChange(CREATE, "/a"))
    host.advance(3_000)
    assert answered(host) == []


def test_api_versions_names_the_registry_alone_and_other_requests_close_the_connection(host):
    named = {each.api_key for each in host.ask(request(ApiKey.API_VERSIONS)).api_keys}
    assert named == {int(ApiKey.API_VERSIONS), *map(int, RegistryApiKey)}
    host.send(request(ApiKey.METADATA), connection_id=3)
    assert host.asked.closed == {3: "METADATA is not a request of the registry"}
