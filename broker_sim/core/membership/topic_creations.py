"""Topics that come to be when they are first needed: asked for at the controller by CreateTopics.

Source: Kafka's `AutoTopicCreationManager`. A client that needs one gets an
error, and comes again; a topic is asked for once at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker_sim.core.controller.topic_changes import USE_DEFAULT
from broker_sim.core.effects import Effects
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Request = APIS[ApiKey.CREATE_TOPICS].request
CREATE_TOPICS_VERSION = 7
TIMEOUT_MS = 30_000


class TopicCreations:
    """`ask` as in `Line`; in an Envelope, so that a broker that is not the controller refuses it
    and does not pass it on again."""

    def __init__(self, ask: Callable[[Message, Reply[Any], Effects], None]) -> None:
        self._ask = ask
        self._asked: set[str] = set()

    def create(self, names: Sequence[str], effects: Effects) -> None:
        """Topics as the controller's configuration has them."""
        wanted = [name for name in names if name not in self._asked]
        if not wanted:
            return
        self._asked.update(wanted)

        def on_answer(answer: Any, effects: Effects) -> None:
            self._asked.difference_update(wanted)
            if isinstance(answer, ErrorCode):
                effects.trace("topics-not-created", names=wanted, error=answer.name)

        message = _Request(
            topics=[
                _Request.CreatableTopic(
                    name=name, num_partitions=USE_DEFAULT, replication_factor=USE_DEFAULT
                )
                for name in wanted
            ],
            timeout_ms=TIMEOUT_MS,
        )
        self._ask(message, on_answer, effects)
