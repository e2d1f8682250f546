"""ListOffsets (key 2): the offset for a timestamp, or for one of Kafka's special timestamps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import topic_allowed
from broker_sim.core.handlers._lookup import find_led
from broker_sim.core.handlers.fetch import READ_COMMITTED
from broker_sim.core.log import PartitionLog
from broker_sim.core.log.timestamps import ReadBudget
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import CorruptBatch

_Response = APIS[ApiKey.LIST_OFFSETS].response
_Topic = _Response.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
VERSIONS = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""From which version on the special timestamps may be asked for."""
NOT_AVAILABLE_VERSION = 5
"""From here on clients know OFFSET_NOT_AVAILABLE (KIP-207)."""
NOTHING = (-1, -1)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Lookup values that all partitions of a request share."""

    parts: BrokerParts
    version: int
    committed: bool
    budget: ReadBudget


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each partition on its own, once. Latest is the LSO under READ_COMMITTED."""
    message = request.message
    committed = message.isolation_level == READ_COMMITTED
    counts = Counter(
        (t.name, entry.partition_index) for t in message.topics for entry in t.partitions
    )
    lookup = _Lookup(parts, request.api_version, committed, ReadBudget())
    topics = []
    for topic in message.topics:
        if not topic_allowed(parts, request, topic.name):
            refused = [
                _answer(entry.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOTHING, -1)
                for entry in topic.partitions
            ]
            topics.append(_Topic(name=topic.name, partitions=refused))
            continue
        partitions = [
            _partition(lookup, topic.name, entry, effects)
            if counts[topic.name, entry.partition_index] == 1
            else _answer(entry.partition_index, ErrorCode.INVALID_REQUEST, NOTHING, -1)
            for entry in topic.partitions
        ]
        topics.append(_Topic(name=topic.name, partitions=partitions))
    return _Response(topics=topics)


def _partition(lookup: _Lookup, topic: str, entry: Any, effects: Effects) -> Any:
    if entry.timestamp < EARLIEST_PENDING_UPLOAD or lookup.version < VERSIONS.get(
        entry.timestamp, 0
    ):
        return _answer(entry.partition_index, ErrorCode.UNSUPPORTED_VERSION, NOTHING, -1)
    number = entry.partition_index
    log, error = find_led(lookup.parts, topic, None, number, entry.current_leader_epoch)
    if log is None:
        return _answer(number, error, NOTHING, -1)
    try:
        found = _find_offset(lookup, log, entry.timestamp)
    except CorruptBatch as corrupt:
        effects.trace("damaged-file", reason=str(corrupt))
        return _answer(entry.partition_index, ErrorCode.CORRUPT_MESSAGE, NOTHING, -1)
    behind = not lookup.parts.replicas.partition(log).knows_what_is_committed
    if behind and (entry.timestamp == LATEST or (entry.timestamp >= 0 and found == NOTHING)):
        new = lookup.version >= NOT_AVAILABLE_VERSION
        error = ErrorCode.OFFSET_NOT_AVAILABLE if new else ErrorCode.LEADER_NOT_AVAILABLE
        return _answer(number, error, NOTHING, -1)
    epoch = -1 if found == NOTHING else log.leader_epoch
    return _answer(entry.partition_index, ErrorCode.NONE, found, epoch)


def _find_offset(lookup: _Lookup, log: PartitionLog, timestamp: int) -> tuple[int, int]:
    """(timestamp, offset); `NOTHING` when no record is that late."""
    end = log.last_stable_offset if lookup.committed else log.high_watermark
    if timestamp == LATEST:
        return -1, end
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING  # there are no tiers
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset(lookup.parts.decompress, lookup.budget)
    else:
        found = log.offset_for_timestamp(timestamp, lookup.parts.decompress, lookup.budget)
    return found if found is not None and found[1] < end else NOTHING


def _answer(partition: int, error: ErrorCode, found: tuple[int, int], leader_epoch: int) -> Any:
    return _Partition(
        partition_index=partition,
        error_code=int(error),
        timestamp=found[0],
        offset=found[1],
        leader_epoch=leader_epoch,
    )
