"""Requests to other brokers, and the callers that wait for their answers.

A reply is called once: with the answer, or with None when the peer was lost first, and then the
request may have been carried out or not. Whether to ask again, and when to stop waiting, is the
caller's business.

A broker takes one request of a connection at a time, so what is behind one that waits there waits,
too. A fetch waits for records, markers wait for the replicas of what they are written to, a request
to the controller for the registry. So a host has a connection to a peer for each kind, as Kafka's
brokers have (`ReplicaFetcherThread`, `TransactionMarkerChannelManager`,
`NodeToControllerChannelManager`).
"""

from __future__ import annotations

import enum
from typing import Any

from broker_sim.apis import BROKER_APIS
from broker_sim.core.effects import Effects, PeerAnswer, PeerLost, Send
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.messages import APIS, ApiKey, Message


class ConnectionKind(enum.Enum):
    """Requests to one peer that share a connection."""

    FETCH = "fetch"
    MARKERS = "markers"
    CONTROLLER = "controller"
    OTHER = "other"


_KINDS: dict[type[Any], ConnectionKind] = {
    APIS[ApiKey.FETCH].request: ConnectionKind.FETCH,
    APIS[ApiKey.WRITE_TXN_MARKERS].request: ConnectionKind.MARKERS,
    **{own.request: ConnectionKind.CONTROLLER for own in BROKER_APIS.values()},
}


def connection_kind(message: Message) -> ConnectionKind:
    """By which connection a request goes."""
    return _KINDS.get(type(message), ConnectionKind.OTHER)


class Peers:
    """Requests of this broker to others that are not answered yet."""

    def __init__(self) -> None:
        self._next_correlation_id = 0
        self._waiting: dict[int, dict[int, Reply[Message | None]]] = {}
        """By peer and correlation id, in the order of the requests."""

    def send(
        self,
        peer: int,
        message: Message,
        api_version: int,
        reply: Reply[Message | None],
        effects: Effects,
    ) -> None:
        """Ask the broker of this id."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self._waiting.setdefault(peer, {})[correlation_id] = reply
        effects.sends.append(Send(peer, correlation_id, api_version, message))

    def on_answer(self, answer: PeerAnswer, effects: Effects) -> None:
        """Pass the answer on; ignore an answer from before the peer was lost."""
        reply = self._waiting.get(answer.peer, {}).pop(answer.correlation_id, None)
        if reply is not None:
            reply(answer.message, effects)

    def on_lost(self, lost: PeerLost, effects: Effects) -> None:
        """Nobody is answered any more; a reply may ask again at once."""
        for reply in self._waiting.pop(lost.peer, {}).values():
            reply(None, effects)
