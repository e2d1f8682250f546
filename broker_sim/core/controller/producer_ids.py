"""Blocks of producer ids, durable before any id of them is used (KIP-730).

Source: Kafka's `ProducerIdControlManager`.
"""

from __future__ import annotations

from typing import Protocol

from broker_sim.core.controller.metadata_log import MetadataLog
from broker_sim.core.controller.metadata_records import producer_ids_record
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import FreeSpace

PRODUCER_ID_BLOCK_SIZE = 1000
"""Kafka's `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`."""


class ProducerIdBlocks(Protocol):
    """Source of blocks of producer ids."""

    def allocate_block(self, effects: Effects) -> tuple[int, int] | None:
        """(first id, count); None when there is none now."""


class ProducerIdAllocator:
    """Hands out blocks of ids that nobody was given before, where a broker is alone."""

    def __init__(self, log: MetadataLog, space: FreeSpace) -> None:
        self._log = log
        self._space = space

    def allocate_block(self, effects: Effects) -> tuple[int, int] | None:
        """(first id, count); None when there is no free space to write that down."""
        if not self._space.allows_append(effects):
            return None
        first = self._log.image.next_producer_id
        self._log.commit([producer_ids_record(first + PRODUCER_ID_BLOCK_SIZE)], effects)
        return first, PRODUCER_ID_BLOCK_SIZE
