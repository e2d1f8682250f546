"""Nodes of the registry, beside what `tests/property/test_registry_model.py` shows of them."""

from __future__ import annotations

import pytest
from support.core.registry_build import RegistryHost, error_of

from broker_sim.apis.registry_codes import (
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


def test_nodes_are_read_by_path_and_by_prefix(host, session_id):
    host.multi(session_id, *(NodeChange(T.CREATE, p) for p in ("/b/1", "/b/2", "/c", "/d")))
    assert set(host.nodes("/b/", ("/d", "/none"))) == {"/b/1", "/b/2", "/d"}
    assert set(host.nodes(None, ("/c",))) == {"/c"}


@pytest.mark.parametrize("operation", [NodeChange(9, "/a"), NodeChange(T.CHECK, "/a", version=-2)])
def test_a_type_or_a_version_that_cannot_be_is_refused(host, session_id, operation):
    host.multi(session_id, NodeChange(T.CREATE, "/a"))
    assert error_of(host.multi(session_id, operation)) is E.BAD_ARGUMENTS
