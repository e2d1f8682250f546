"""Producer ids, handed out from blocks (source: Kafka's `RPCProducerIdManager`, KIP-730).

A block is durable before the first id of it is used, so an id is never given twice, however the
broker dies; the rest of a block is lost then, and gaps are fine.
"""

from __future__ import annotations

from broker_sim.core.controller.producer_ids import ProducerIdBlocks
from broker_sim.core.effects import Effects


class ProducerIdManager:
    """The rest of the present block."""

    def __init__(self, allocator: ProducerIdBlocks) -> None:
        self._allocator = allocator
        self._next = 0
        self._end = 0

    def generate(self, effects: Effects) -> int | None:
        """A producer id that nobody had before; None when no block can be persisted now."""
        if self._next == self._end:
            block = self._allocator.allocate_block(effects)
            if block is None:
                return None
            first, count = block
            self._next, self._end = first, first + count
        self._next += 1
        return self._next - 1
