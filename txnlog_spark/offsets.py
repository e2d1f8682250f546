"""Source offsets, and the JSON in which Spark's Kafka source stores them.

There is one shape everywhere: `{"topic": {"0": 123}}`, the *next* offset to read in each partition.
Spark writes this JSON to `<checkpoint>/offsets/<batchId>`, the options `startingOffsets` and
`endingOffsets` accept it, and the sink reads it back to commit a consumer group's offsets. The
JVM's own Kafka source writes the same JSON (Spark's `JsonUtils` and `KafkaSourceOffset`), so each
source can read the other's checkpoint. An offset that the connector's source plans also has a
`SourceNote`, under keys that are not valid topic names. This module is pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from txnlog_kafka.wire.topic_partition import TopicPartition

EARLIEST_OFFSET = -2
"""Value in `startingOffsets` for the log start offset of the partition (Spark's
`KafkaOffsetRangeLimit`)."""
LATEST_OFFSET = -1
"""Value in `startingOffsets` and `endingOffsets` for the end of the partition."""


CLUSTER_NOTE = "txnlog/cluster.id/"
GROUP_NOTE = "txnlog/group.id/"
TOPIC_NOTE = "txnlog/topic.id/"
SOURCE_NOTE = "txnlog/source.id/"
START_NOTE = "txnlog/group.start/"
"""Prefixes of the keys that hold the notes of an offset, next to its topics. The text of a note
follows the prefix, and the value has no partitions. So Spark's own Kafka source reads no partition
from these keys, and a checkpoint can go back to it. A topic's name has no slash (Kafka's
`Topic.validate`)."""
_FORMER_START = "startingOffsets/committed"
"""Note of a former version about a start from committed offsets."""
_NOTES = (_FORMER_START, CLUSTER_NOTE, GROUP_NOTE, TOPIC_NOTE, SOURCE_NOTE, START_NOTE)

SourceOffset = Mapping[TopicPartition, int]
"""Next offset to read in each partition: inclusive as a start, exclusive as an end."""


class SourceNote(NamedTuple):
    """Identity of the logs that the offsets belong to, and the reader's `kafka.group.id` (or None).

    `topic_ids` has (topic, id), sorted, for the topics whose id the brokers report (Kafka 2.8 and
    newer). An id is written as Kafka's tools show it; a topic that is deleted and created again
    gets another id. `source_id` names this source of this checkpoint. `group_start` is the
    `positions_digest` of the group's offsets to which the source moved without reading: at its
    start, or for a batch that its checkpoint had lost. A later offset inherits both values from the
    offset before it. Both are "" if unknown.
    """

    cluster_id: str
    group_id: str | None
    topic_ids: tuple[tuple[str, str], ...] = ()
    source_id: str = ""
    group_start: str = ""


class OffsetFormatError(ValueError):
    """The text or value is not offset JSON; the message says where."""


def to_json_value(offsets: SourceOffset) -> dict[str, dict[str, int]]:
    """Return the JSON value of `offsets`, topics and partitions in ascending order."""
    value: dict[str, dict[str, int]] = {}
    for (topic, partition), position in sorted(offsets.items()):
        value.setdefault(topic, {})[str(partition)] = position
    return value


def from_json_value(value: Any) -> dict[TopicPartition, int]:
    """Return the offsets of a JSON value. Raises OffsetFormatError naming the wrong part.

    The notes next to the topics are left out; `source_note_of` returns them.
    """
    if not isinstance(value, Mapping):
        raise OffsetFormatError(f"expected an object of topics, got {_shown(value)}")
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in plain_offset(value).items():
        if not isinstance(partitions, Mapping):
            raise OffsetFormatError(
                f"topic {topic!r}: expected an object of partitions, got {_shown(partitions)}"
            )
        for partition, position in partitions.items():
            name = TopicPartition(str(topic), _partition_number(topic, partition))
            if not isinstance(position, int) or isinstance(position, bool):
                raise OffsetFormatError(f"{name}: offset {_shown(position)} is not an integer")
            offsets[name] = position
    return offsets


def with_source_note(value: Mapping[str, Any], note: SourceNote) -> dict[str, Any]:
    """Return the JSON value with `note` as its last parts; equal offsets give equal JSON text."""
    topics: dict[str, Any] = {
        f"{TOPIC_NOTE}{topic}/{topic_id}": {} for topic, topic_id in note.topic_ids
    }
    noted: dict[str, Any] = {**value, **topics, CLUSTER_NOTE + note.cluster_id: {}}
    if note.group_id is not None:
        noted[GROUP_NOTE + note.group_id] = {}
    if note.source_id:
        noted[SOURCE_NOTE + note.source_id] = {}
    if note.group_start:
        noted[START_NOTE + note.group_start] = {}
    return noted


def source_note_of(value: Any) -> SourceNote | None:
    """Return the `SourceNote` in a JSON value, None without a note. Raises OffsetFormatError if
    there are several."""
    if not isinstance(value, Mapping):
        return None
    cluster_id = _noted(value, CLUSTER_NOTE)
    group_id = _noted(value, GROUP_NOTE)
    if cluster_id is None:
        return None
    topics = (k.removeprefix(TOPIC_NOTE) for k in value if k.startswith(TOPIC_NOTE))
    topic_ids = tuple(sorted((t, i) for t, _, i in (each.partition("/") for each in topics)))
    source_id, group_start = _noted(value, SOURCE_NOTE), _noted(value, START_NOTE)
    return SourceNote(cluster_id, group_id, topic_ids, source_id or "", group_start or "")


def _noted(value: Mapping[str, Any], prefix: str) -> str | None:
    """Return the text after a note's prefix, None without the note."""
    found = [key.removeprefix(prefix) for key in value if key.startswith(prefix)]
    if len(found) > 1:
        raise OffsetFormatError(f"{len(found)} notes {prefix}: {', '.join(sorted(found))}")
    return found[0] if found else None


def noted_topic_ids(value: Any) -> dict[str, str]:
    """Return the topic ids of the `SourceNote` in a JSON value. Raises its OffsetFormatError."""
    note = source_note_of(value)
    return {} if note is None else dict(note.topic_ids)


def plain_offset(value: Any) -> Any:
    """Return the JSON value without its notes; return any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {key: part for key, part in value.items() if not str(key).startswith(_NOTES)}


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse offsets from JSON text such as `{"orders":{"0":23,"1":-2}}`.

    Offsets below -2 are refused. Raises OffsetFormatError.
    """
    offsets = from_json_value(_json_of(text))
    for name, position in offsets.items():
        if position < EARLIEST_OFFSET:
            raise OffsetFormatError(
                f"{name}: offset {position} is neither an offset, -1 (latest) nor -2 (earliest)"
            )
    return offsets


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Parse the partitions of an `assign` option such as `{"orders":[0,1]}`; sort, drop repeats.

    Raises OffsetFormatError.
    """
    value = _json_of(text)
    if not isinstance(value, Mapping) or not value:
        raise OffsetFormatError(f"expected an object of topics, got {_shown(value)}")
    found: set[TopicPartition] = set()
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not partitions:
            raise OffsetFormatError(
                f"topic {topic!r}: expected a list of partition numbers, got {_shown(partitions)}"
            )
        found.update(TopicPartition(topic, _partition_number(topic, p)) for p in partitions)
    return tuple(sorted(found))


def positions_digest(offsets: SourceOffset) -> str:
    """Return 16 hexadecimal digits that identify these offsets, whatever their order."""
    return hashlib.sha256(format_offsets(offsets).encode()).hexdigest()[:16]


def format_offsets(offsets: SourceOffset) -> str:
    """Return the compact JSON text of `offsets`; `parse_offsets` parses it."""
    return json.dumps(to_json_value(offsets), separators=(",", ":"))


def is_source_offset(value: Any) -> bool:
    """True if a line of Spark's offset log is an offset of a Kafka-like source.

    A file or rate source writes other shapes, without partitions that could be committed for a
    group.
    """
    try:
        offsets = from_json_value(value)
    except OffsetFormatError:
        return False
    return bool(offsets) or plain_offset(value) == {}


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OffsetFormatError(f"{_shown(text)} is not JSON: {error}") from None


def _partition_number(topic: str, partition: Any) -> int:
    try:
        number = int(partition)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(partition, bool):
        raise OffsetFormatError(f"topic {topic!r}: {_shown(partition)} is not a partition number")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
