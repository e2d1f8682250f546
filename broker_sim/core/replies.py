"""Answers: to a request of a client, and replies that come later, alone or made of several.

A reply is called exactly once, in the step of its request or in a later one, and always with the
effects of the step that it is called in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from broker_sim.core.effects import Effects, RecordsField, Request, Respond
from txnlog_kafka.wire.messages import Message

K = TypeVar("K")
V = TypeVar("V")

Reply = Callable[[V, Effects], None]
Ask = Callable[[Reply[V], Effects], None]
"""A question that calls its reply once, now or later."""


def answer_to(
    request: Request,
    message: Message,
    records: tuple[RecordsField, ...] = (),
    *,
    logged_in: bool = False,
    for_replica: bool = False,
) -> Respond:
    """Return the effect that answers a request, with the other fields of `Respond`."""
    return Respond(
        request.connection_id,
        request.correlation_id,
        request.api_key,
        request.api_version,
        message,
        records,
        logged_in,
        for_replica,
    )


def gather(asks: Mapping[K, Ask[V]], reply: Reply[dict[K, V]], effects: Effects) -> None:
    """Ask all, in order; reply with every answer when the last one has come."""
    answers: dict[K, V] = {}

    def take(key: K, value: V, effects: Effects) -> None:
        answers[key] = value
        if len(answers) == len(asks):
            reply({each: answers[each] for each in asks}, effects)

    if not asks:
        reply({}, effects)
    for key, ask in asks.items():
        ask(partial(take, key), effects)
