"""Requests to other brokers: who waits for which answer.

A reply is called once: with the answer, or with None when the peer was lost first, and then the
request may have been carried out or not. Whether to ask again, and when to stop waiting, is the
caller's business.
"""

from __future__ import annotations

from broker_sim.core.effects import Effects, PeerAnswer, PeerLost, Send
from broker_sim.core.replies import Reply
from txnlog_spark.wire.messages import Message


class Peers:
    """What this broker has asked others and is not answered yet."""

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
        """One from before the peer was lost comes too late, and is ignored."""
        reply = self._waiting.get(answer.peer, {}).pop(answer.correlation_id, None)
        if reply is not None:
            reply(answer.message, effects)

    def on_lost(self, lost: PeerLost, effects: Effects) -> None:
        """Nobody is answered any more; a reply may ask again at once."""
        for reply in self._waiting.pop(lost.peer, {}).values():
            reply(None, effects)
