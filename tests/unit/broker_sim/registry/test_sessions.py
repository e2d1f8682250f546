"""Sessions of the registry: timeouts, expiry, what outlives a restart."""

from __future__ import annotations

from support.core.registry_build import K, RegistryHost, error_of

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    NodeChange,
    OperationType,
    RegistryError,
    registry_of_session,
)
from broker_sim.core.effects import Effects
from broker_sim.registry.changes import SessionOpened
from broker_sim.registry.journal import Journal
from simulation.hosts.disk import SimDisk

OK, EXPIRED = RegistryError.NONE, RegistryError.SESSION_EXPIRED


def test_any_request_keeps_a_session_alive_and_silence_ends_it():
    host = RegistryHost()
    session_id = host.open(5_000).session_id
    host.advance(4_999)
    assert host.heartbeat(session_id) is OK
    host.advance(4_999)
    assert error_of(host.multi(session_id, NodeChange(OperationType.CHECK, "/a"))) is (
        RegistryError.NO_NODE
    )
    host.advance(4_999)
    assert error_of(host.open(1, session_id)) is OK
    host.advance(5_000)
    assert host.heartbeat(session_id) is EXPIRED
    assert error_of(host.open(1, session_id)) is EXPIRED


def test_the_ephemeral_nodes_of_an_expired_session_go_in_the_change_that_ends_it():
    host = RegistryHost()
    session_id, other_id = host.open(1_000).session_id, host.open(9_000).session_id
    host.multi(session_id, NodeChange(OperationType.CREATE_EPHEMERAL, "/a"))
    host.multi(session_id, NodeChange(OperationType.CREATE, "/b"))
    host.multi(other_id, NodeChange(OperationType.CREATE_EPHEMERAL, "/c"))
    before = len(host.operations)
    host.advance(1_000)
    assert set(host.nodes()) == {"/b", "/c"}
    assert [type(each).__name__ for each in host.operations[before:]] == ["Append", "Flush"]


def test_a_closed_session_is_gone_at_once_with_its_timer():
    host = RegistryHost()
    session_id = host.open().session_id
    host.multi(session_id, NodeChange(OperationType.CREATE_EPHEMERAL, "/a"))
    assert error_of(host.call(K.REGISTRY_CLOSE_SESSION, session_id=session_id)) is OK
    assert host.nodes() == {}
    assert host.timers == {}
    assert error_of(host.call(K.REGISTRY_CLOSE_SESSION, session_id=session_id)) is EXPIRED


def test_a_session_id_is_never_given_twice():
    host = RegistryHost()
    given = []
    for _ in range(30):  # more than a journal holds: snapshots carry the counter too
        session_id = host.open().session_id
        host.call(K.REGISTRY_CLOSE_SESSION, session_id=session_id)
        given.append(session_id)
        host = host.restarted()
    assert host.disk.size_bytes("snapshot")
    assert len(set(given)) == len(given)


def test_a_session_may_use_several_connections():
    host = RegistryHost()
    session_id = host.open().session_id
    host.disconnect(1)
    assert error_of(host.call(K.REGISTRY_HEARTBEAT, 2, session_id=session_id)) is OK


def test_without_a_session_only_reads_are_carried_out():
    host = RegistryHost()
    assert error_of(host.multi(NO_SESSION, NodeChange(OperationType.CREATE, "/a"))) is EXPIRED
    assert error_of(host.append(NO_SESSION, 0, 0, b"r")) is EXPIRED
    assert error_of(host.wait(NO_SESSION, 0, 0)) is EXPIRED
    assert error_of(host.read(0)) is OK
    assert host.nodes() == {}


def test_a_change_that_comes_late_by_an_older_connection_is_refused():
    """Its client has read since, by a newer one, that it was not carried out (cluster 120)."""
    host = RegistryHost()
    session_id = host.open().session_id
    host.multi(session_id, NodeChange(OperationType.CREATE, CONTROLLER_EPOCH_PATH))
    assert host.call(K.REGISTRY_READ, connection=3, session_id=session_id).record_epoch == -1
    for key, fields in (
        (K.REGISTRY_APPEND, {"controller_epoch": 0, "records": [b"late"]}),
        (K.REGISTRY_MULTI, {}),
        (K.REGISTRY_WRITE_SNAPSHOT, {"controller_epoch": 0}),
    ):
        assert host.call(key, connection=2, session_id=session_id, **fields) is None
        assert "newer connection" in host.asked.closed.pop(2)
    assert host.call(K.REGISTRY_READ, connection=3, session_id=session_id).log_end_offset == 0
    # Waits have a connection of their own, and what changes nothing may come late.
    assert error_of(host.call(K.REGISTRY_WAIT, connection=2, session_id=session_id)) is OK
    assert error_of(host.call(K.REGISTRY_WAIT, connection=9, session_id=session_id)) is OK
    assert error_of(host.call(K.REGISTRY_HEARTBEAT, connection=2, session_id=session_id)) is OK
    fields = {"controller_epoch": 0, "records": [b"in time"]}
    answer = host.call(K.REGISTRY_APPEND, connection=3, session_id=session_id, **fields)
    assert error_of(answer) is OK


def test_no_two_registries_give_the_same_session_and_one_that_is_started_again_goes_on():
    """A client that asks another registry than before must learn that its session has expired."""
    host, other = RegistryHost(seed="one"), RegistryHost(seed="other")
    first, second = host.open().session_id, host.open().session_id
    assert registry_of_session(first) == registry_of_session(second) > 0
    assert other.heartbeat(first) is EXPIRED
    assert registry_of_session(other.open().session_id) not in (0, registry_of_session(first))
    again = host.restarted()
    assert again.heartbeat(first) is OK
    assert again.open().session_id == second + 1


def test_sessions_of_a_directory_that_has_not_drawn_yet_go_on_and_the_next_ones_say_the_registry():
    """Directories of an older version have sessions that count from 1."""
    disk, effects = SimDisk(), Effects(0, 0)
    journal = Journal(disk, 1_000)
    journal.recover(effects)
    journal.append(1, SessionOpened(1, 5_000), effects)
    for operation in effects.storage:
        disk.apply(operation)
    host = RegistryHost(disk)
    assert host.heartbeat(1) is OK
    opened = host.open().session_id
    assert registry_of_session(opened) > 0
    assert host.restarted().open().session_id == opened + 1
