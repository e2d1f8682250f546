"""Nodes of the registry: versions, and multi as all or nothing."""

from __future__ import annotations

import pytest
from support.core.registry_build import RegistryHost, error_of

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    NodeChange,
    OperationType,
    RegistryError,
)

T, E = OperationType, RegistryError


@pytest.fixture
def host():
    return RegistryHost()


@pytest.fixture
def session_id(host):
    return host.open().session_id


def errors(answer) -> list[RegistryError]:
    return [error_of(each) for each in answer.results]


def test_a_node_has_versions_from_zero_and_an_owner_or_none(host, session_id):
    host.multi(session_id, NodeChange(T.CREATE, "/a", b"1"))
    host.multi(session_id, NodeChange(T.CREATE_EPHEMERAL, "/b", b"2"))
    answer = host.multi(session_id, NodeChange(T.SET, "/a", b"3", 0))
    assert [each.node_version for each in answer.results] == [1]
    assert host.nodes() == {"/a": (b"3", 1, NO_SESSION), "/b": (b"2", 0, session_id)}


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (NodeChange(T.CREATE, "/a"), E.NODE_EXISTS),
        (NodeChange(T.CREATE_EPHEMERAL, "/a"), E.NODE_EXISTS),
        (NodeChange(T.SET, "/a", b"", 1), E.BAD_VERSION),
        (NodeChange(T.DELETE, "/a", b"", 1), E.BAD_VERSION),
        (NodeChange(T.CHECK, "/a", b"", 1), E.BAD_VERSION),
        (NodeChange(T.SET, "/b"), E.NO_NODE),
        (NodeChange(T.DELETE, "/b"), E.NO_NODE),
        (NodeChange(T.CHECK, "/b"), E.NO_NODE),
        (NodeChange(T.CREATE, "b"), E.BAD_ARGUMENTS),
        (NodeChange(T.DELETE, CONTROLLER_EPOCH_PATH), E.BAD_ARGUMENTS),
        (NodeChange(T.CREATE_EPHEMERAL, CONTROLLER_EPOCH_PATH), E.BAD_ARGUMENTS),
    ],
)
def test_one_refused_operation_refuses_the_multi_and_writes_nothing(
    host, session_id, operation, error
):
    host.multi(session_id, NodeChange(T.CREATE, "/a", b"1"))
    before = len(host.operations)
    answer = host.multi(
        session_id,
        NodeChange(T.CREATE, "/c"),
        operation,
        NodeChange(T.CREATE, "/d"),
    )
    assert error_of(answer) is error
    assert errors(answer) == [E.NONE, error, E.RUNTIME_INCONSISTENCY]
    assert set(host.nodes()) == {"/a"}
    assert len(host.operations) == before


def test_an_operation_sees_those_before_it_in_its_multi(host, session_id):
    answer = host.multi(
        session_id,
        NodeChange(T.CREATE, "/a"),
        NodeChange(T.SET, "/a", b"x", 0),
        NodeChange(T.CHECK, "/a", version=1),
        NodeChange(T.DELETE, "/a", version=1),
        NodeChange(T.CREATE, "/a", b"again"),
    )
    assert [each.node_version for each in answer.results] == [0, 1, 1, -1, 0]
    assert host.nodes() == {"/a": (b"again", 0, NO_SESSION)}


def test_nodes_are_read_by_path_and_by_prefix(host, session_id):
    host.multi(session_id, *(NodeChange(T.CREATE, p) for p in ("/b/1", "/b/2", "/c", "/d")))
    assert set(host.nodes("/b/", ("/d", "/none"))) == {"/b/1", "/b/2", "/d"}
    assert set(host.nodes(None, ("/c",))) == {"/c"}


def test_checks_alone_write_nothing_and_a_type_that_is_unknown_is_refused(host, session_id):
    host.multi(session_id, NodeChange(T.CREATE, "/a"))
    before = len(host.operations)
    assert error_of(host.multi(session_id, NodeChange(T.CHECK, "/a"))) is E.NONE
    assert error_of(host.multi(session_id, NodeChange(9, "/a"))) is E.BAD_ARGUMENTS
    assert error_of(host.multi(session_id, NodeChange(T.CHECK, "/a", version=-2))) is (
        E.BAD_ARGUMENTS
    )
    assert len(host.operations) == before


def test_of_two_sessions_one_creates_a_node_and_the_other_gets_it_when_the_first_is_gone(host):
    first, second = host.open(1_000).session_id, host.open(9_000).session_id
    mine = NodeChange(T.CREATE_EPHEMERAL, "/controller")
    assert error_of(host.multi(first, mine)) is E.NONE
    assert error_of(host.multi(second, mine)) is E.NODE_EXISTS
    host.advance(1_000)
    assert error_of(host.multi(second, mine)) is E.NONE
    assert host.nodes()["/controller"][2] == second
