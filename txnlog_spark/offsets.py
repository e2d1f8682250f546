"""Source offsets and the JSON that Spark's Kafka source keeps them in.

One shape everywhere: `{"topic": {"0": 123}}`, the *next* offset to read per partition. It is what
Spark writes into `<checkpoint>/offsets/<batchId>`, what the options `startingOffsets` and
`endingOffsets` take, and what the sink reads back to commit a consumer group's position; the JVM's
own Kafka source writes the same, so a checkpoint can be read whichever of them wrote it (Spark's
`JsonUtils` and `KafkaSourceOffset`). Beside its topics an offset that our source plans holds a
`SourceNote`, under keys that no topic can have. Pure: text and mappings in, values out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from txnlog_kafka.wire.topic_partition import TopicPartition

EARLIEST_OFFSET = -2
"""In `startingOffsets`: the log start offset of the partition (Spark's `KafkaOffsetRangeLimit`)."""
LATEST_OFFSET = -1
"""In `startingOffsets` and `endingOffsets`: the end of the partition."""


CLUSTER_NOTE = "txnlog/cluster.id/"
GROUP_NOTE = "txnlog/group.id/"
TOPIC_NOTE = "txnlog/topic.id/"
SOURCE_NOTE = "txnlog/source.id/"
START_NOTE = "txnlog/group.start/"
"""Beside the topics of every offset that our source plans: keys with what they note behind these
prefixes and no partitions below them, so that Spark's own Kafka source reads them as no partition
and a checkpoint can go back to it. A topic's name has no slash (Kafka's `Topic.validate`)."""
_FORMER_START = "startingOffsets/committed"
"""A former version's note of a start from committed offsets."""
_NOTES = (_FORMER_START, CLUSTER_NOTE, GROUP_NOTE, TOPIC_NOTE, SOURCE_NOTE, START_NOTE)

SourceOffset = Mapping[TopicPartition, int]
"""Next offset to read per partition: inclusive as a start, exclusive as an end."""


class SourceNote(NamedTuple):
    """The logs that the offsets are positions in, and the reader's `kafka.group.id` (None without).

    `topic_ids` has (topic, id) of the topics whose id the brokers tell (Kafka 2.8 and newer), in
    order, each id as Kafka's tools show it: a topic that is deleted and created again gets another.
    `source_id` names this source of this checkpoint, and `group_start` is the `positions_digest` of
    the group's offsets that the source went to without reading: at its start, or for a batch that
    its checkpoint had lost. A later offset inherits both from the offset before it. "" without one.
    """

    cluster_id: str
    group_id: str | None
    topic_ids: tuple[tuple[str, str], ...] = ()
    source_id: str = ""
    group_start: str = ""


class OffsetFormatError(ValueError):
    """Text or a value that is not offset JSON; the message says where."""


def to_json_value(offsets: SourceOffset) -> dict[str, dict[str, int]]:
    """The JSON value of `offsets`, topics and partitions in ascending order."""
    value: dict[str, dict[str, int]] = {}
    for (topic, partition), position in sorted(offsets.items()):
        value.setdefault(topic, {})[str(partition)] = position
    return value


def from_json_value(value: Any) -> dict[TopicPartition, int]:
    """The offsets of a JSON value. Raises OffsetFormatError naming the part that is wrong.

    The notes beside the topics are left out: `source_note_of` gives them.
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
    """The JSON value with `note` as its last parts; equal offsets give equal JSON text."""
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
    """The `SourceNote` in a JSON value, None without one. Raises OffsetFormatError for several."""
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
    """The text behind a note's prefix, None without the note."""
    found = [key.removeprefix(prefix) for key in value if key.startswith(prefix)]
    if len(found) > 1:
        raise OffsetFormatError(f"{len(found)} notes {prefix}: {', '.join(sorted(found))}")
    return found[0] if found else None


def noted_topic_ids(value: Any) -> dict[str, str]:
    """The topic ids of the `SourceNote` in a JSON value. Raises OffsetFormatError as it does."""
    note = source_note_of(value)
    return {} if note is None else dict(note.topic_ids)


def plain_offset(value: Any) -> Any:
    """The JSON value without its notes; any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    return {key: part for key, part in value.items() if not str(key).startswith(_NOTES)}


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """The offsets of JSON text such as `{"orders":{"0":23,"1":-2}}`.

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
    """The partitions of an `assign` option such as `{"orders":[0,1]}`, sorted, without repeats.

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
    """Return 16 hexadecimal digits that name these offsets, whatever their order."""
    return hashlib.sha256(format_offsets(offsets).encode()).hexdigest()[:16]


def format_offsets(offsets: SourceOffset) -> str:
    """The compact JSON text of `offsets`: `parse_offsets` gives it back."""
    return json.dumps(to_json_value(offsets), separators=(",", ":"))


def is_source_offset(value: Any) -> bool:
    """Whether a line of Spark's offset log is the offset of a Kafka-like source.

    A file or rate source writes other shapes; those have no partitions to commit to a group.
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
