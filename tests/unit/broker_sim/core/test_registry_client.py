"""A broker's side of the registry, on the registry itself: what is asked is what is answered."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.registry_build import RegistryHost

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    Node,
    NodeChange,
    OperationType,
    RegistryError,
)
from broker_sim.core.effects import Effects, PeerAnswer, PeerLost
from broker_sim.core.peers import Peers
from broker_sim.core.registry_client import (
    REGISTRY_PEER,
    MultiAnswer,
    Position,
    ReadAnswer,
    RegistryClient,
    SessionAnswer,
)

E, T = RegistryError, OperationType


class Asker:
    """A client whose questions reach a registry, each peer id by a connection of its own."""

    def __init__(self, host: RegistryHost) -> None:
        self.host = host
        self.peers = Peers()
        self.client = RegistryClient(self.peers)
        self.told: list[Any] = []
        self.effects = Effects(0, 0)
        self.asked: dict[tuple[int, int], tuple[int, int]] = {}
        """(connection, correlation id of the host) -> (peer, correlation id)."""

    def ask(self, method: str, *arguments: Any) -> Any:
        """Send a request; return the reply, or None while there is no reply."""
        before = len(self.told)
        getattr(self.client, method)(*arguments, lambda a, _: self.told.append(a), self.effects)
        (send,) = self.effects.sends
        self.effects.sends.clear()
        key = self.host.send(send.message, connection_id=-send.peer)
        self.asked[key] = (send.peer, send.correlation_id)
        self.take_answers()
        return self.told[-1] if len(self.told) > before else None

    def take_answers(self) -> None:
        """Hand each answer of the registry to the peer that waits for it."""
        told = self.host.asked.answers
        for key in list(told):
            answer = PeerAnswer(*self.asked.pop(key), told.pop(key))
            self.peers.on_answer(answer, self.effects)


@pytest.fixture
def asker():
    made = Asker(RegistryHost())
    answer = made.ask("open_session", 5_000)
    assert answer == SessionAnswer(E.NONE, made.client.session_id, 5_000)
    return made


def test_the_session_that_was_opened_is_used_until_it_expires(asker):
    first = asker.client.session_id
    assert asker.ask("heartbeat") is E.NONE
    assert asker.ask("open_session", 5_000).session_id == first
    asker.host.advance(5_000)
    assert asker.ask("heartbeat") is E.SESSION_EXPIRED
    assert asker.ask("open_session", 5_000).error is E.SESSION_EXPIRED
    assert asker.client.session_id == NO_SESSION
    assert asker.ask("open_session", 5_000).session_id == first + 1
    assert asker.ask("close_session") is E.NONE
    assert asker.ask("heartbeat") is E.SESSION_EXPIRED


def test_a_controller_is_elected_writes_the_log_and_others_read_it(asker):
    election = [
        NodeChange(T.CREATE_EPHEMERAL, "/controller", b"1"),
        NodeChange(T.CREATE, CONTROLLER_EPOCH_PATH),
    ]
    assert asker.ask("multi", election) == MultiAnswer(E.NONE, 2)
    assert asker.ask("multi", election) == MultiAnswer(E.NODE_EXISTS, 2)
    assert asker.ask("append", 0, 0, [b"a", b"b"]) == (E.NONE, 2)
    assert asker.ask("append", 1, 2, [b"c"]) == (E.STALE_CONTROLLER_EPOCH, 2)
    assert asker.ask("read", 1, 100) == ReadAnswer(E.NONE, 0, 2, 0, (b"b",))
    nodes = asker.ask("get_nodes", [CONTROLLER_EPOCH_PATH], "/controller")
    assert nodes == (
        Position(E.NONE, 2, 2),
        {
            "/controller": Node(b"1", 0, asker.client.session_id, 2),
            CONTROLLER_EPOCH_PATH: Node(b"", 0, NO_SESSION, 2),
        },
    )


def test_a_wait_does_not_keep_changes_waiting_and_is_answered_by_them(asker):
    seen, _ = asker.ask("get_nodes", [], None)
    assert asker.ask("wait", seen, 1_000) is None
    asker.ask("multi", [NodeChange(T.CREATE, "/a")])
    assert Position(E.NONE, 2, 0) in asker.told
    assert asker.asked == {}


def test_a_lost_connection_is_answered_with_none():
    asker = Asker(RegistryHost())
    asker.client.heartbeat(lambda answer, _: asker.told.append(answer), asker.effects)
    asker.peers.on_lost(PeerLost(REGISTRY_PEER), asker.effects)
    assert asker.told == [None]
