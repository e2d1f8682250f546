"""Blocks of producer ids from the controller: AllocateProducerIds (KIP-730).

Source: Kafka's `RPCProducerIdManager`. A client that needs an id while the next block is on its
way has to come again.
"""

from __future__ import annotations

from typing import Any

from broker_sim.apis import BROKER_APIS, BrokerApiKey
from broker_sim.core.effects import Effects
from broker_sim.core.membership.controller_requests import Line
from txnlog_kafka.wire.error_codes import ErrorCode

_API = BROKER_APIS[BrokerApiKey.ALLOCATE_PRODUCER_IDS]


class ClusterProducerIds:
    """Implements `ProducerIdBlocks`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._block: tuple[int, int] | None = None
        self._is_asked = False

    def allocate_block(self, effects: Effects) -> tuple[int, int] | None:
        """(first id, count); None when it has to be asked for first."""
        block, self._block = self._block, None
        if block is None and not self._is_asked:
            self._is_asked = True
            broker_id, broker_epoch = self._line.me()
            message = _API.request(broker_id=broker_id, broker_epoch=broker_epoch)
            self._line.ask(message, self._take_answer, effects)
        return block

    def _take_answer(self, answer: Any, effects: Effects) -> None:
        self._is_asked = False
        if isinstance(answer, ErrorCode) or answer.error_code:
            error = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
            effects.trace("no-producer-ids", error=error.name)
            return
        self._block = answer.producer_id_start, answer.producer_id_len
