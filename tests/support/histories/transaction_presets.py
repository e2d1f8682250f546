"""Transactional ids whose state is written straight into `__transaction_state`.

An epoch near its end takes 32,000 requests to reach. A record takes one: a client that calls
itself `__admin_client` may write to internal topics, and the next start of the broker loads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from support.raw.raw import Connection, RawProducer

from broker_sim.core.coordinator.runtime import partition_for
from broker_sim.core.transaction import TransactionState
from broker_sim.core.transaction.log_records import encode_key, encode_value
from broker_sim.core.transaction.metadata import TransactionMetadata
from txnlog_kafka.wire.records import NO_TIMESTAMP, Record, encode_batch

INTERNAL_CLIENT_ID = "__admin_client"
LOG_TOPIC = "__transaction_state"
LOG_PARTITIONS = 4
"""Partitions of the transaction log, as SMALL_BROKER of both brokers sets them."""


@dataclass(frozen=True)
class Preset:
    """Transactional id with a preset state. `age_ms` is how long its transaction has run;
    `partitions` are those of an ongoing transaction. Its timeout must not end before its test
    begins."""

    transactional_id: str
    epoch: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[tuple[str, int], ...] = ()
    timeout_ms: int = 600_000
    age_ms: int = 0
    client_version: int = 2


def plant_transactions(broker: Any, presets: Iterable[Preset]) -> dict[str, tuple[int, int]]:
    """Write the records and restart the broker; (producer id, epoch) by transactional id."""
    identities: dict[str, tuple[int, int]] = {}
    with Connection(broker.port, INTERNAL_CLIENT_ID) as connection:
        for preset in presets:
            writer = RawProducer(connection)
            assert writer.find_coordinator(preset.transactional_id) == "NONE"
            assert writer.init() == "NONE"
            identities[preset.transactional_id] = (writer.producer_id, preset.epoch)
            partition = partition_for(preset.transactional_id, LOG_PARTITIONS)
            batch = preset_batch(preset, writer.producer_id, int(time.time() * 1000))
            assert writer.produce_bytes(LOG_TOPIC, partition, batch) == "NONE"
    broker.stop()
    broker.start()
    return identities


def preset_batch(preset: Preset, producer_id: int, now_ms: int) -> bytes:
    """The record of a preset, as a batch."""
    is_begun = preset.state is not TransactionState.EMPTY
    metadata = TransactionMetadata(
        transactional_id=preset.transactional_id,
        producer_id=producer_id,
        producer_epoch=preset.epoch,
        timeout_ms=preset.timeout_ms,
        state=preset.state,
        last_update_ms=now_ms,
        previous_producer_id=producer_id,
        partitions=frozenset(preset.partitions),
        start_ms=now_ms - preset.age_ms if is_begun else NO_TIMESTAMP,
        client_transaction_version=preset.client_version if is_begun else 0,
    )
    record = Record(encode_key(preset.transactional_id), encode_value(metadata, 2), now_ms)
    return encode_batch([record])
