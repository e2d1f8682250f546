"""Reader of Spark's checkpoint: `metadata` (the query id) and `offsets/<batchId>`.

An entry of Spark's offset log (`OffsetSeqLog`) is a line with the version, a line of JSON metadata,
then one line per source. In version 2 (`spark.sql.streaming.offsetLog.formatVersion`, named
sources) each source's line begins with its name and a colon. Spark writes the entry before the
batch runs and never changes it. The metadata has the time of planning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import checkpoint_files as files
from txnlog_spark.commit.output import digest_of
from txnlog_spark.errors import TxnLogError
from txnlog_spark.offsets import (
    OffsetFormatError,
    SourceNote,
    from_json_value,
    is_source_offset,
    plain_offset,
    source_note_of,
)

NO_OFFSET = "-"
"""Stands for a source without an offset yet (Spark's `SERIALIZED_VOID_OFFSET`)."""
STATE_PARTITIONS = "spark.sql.shuffle.partitions"
_DIGEST_HEX = 16


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """End of a batch in a source. `offsets` are the next to read, {} if it is not Kafka's."""

    name: str
    offsets: Mapping[TopicPartition, int]
    note: SourceNote | None
    is_kafka_like: bool = True

    @property
    def source_id(self) -> str:
        """The name of the source, "" if it noted none (`SourceNote`)."""
        return "" if self.note is None else self.note.source_id

    @property
    def group_start(self) -> str:
        """Digest of the group's offsets that the source went to without reading, "" for none."""
        return "" if self.note is None else self.note.group_start


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Spark's log entry for a batch.

    `digest` covers the offsets of all sources, other formats included, without notes. `ends` covers
    the same without the sources' names. `batch_hash` covers the whole file. `form` is the version
    of the file and the number of partitions of the query's state.
    """

    sources: tuple[SourceEnd, ...]
    digest: str
    batch_hash: str
    ends: str
    form: tuple[str, str]

    @property
    def source_offsets(self) -> dict[TopicPartition, int]:
        """The next offsets to read of all Kafka-like sources together."""
        merged: dict[TopicPartition, int] = {}
        for source in self.sources:
            merged.update(source.offsets)
        return merged

    @property
    def read_differently(self) -> list[TopicPartition]:
        """The partitions that sources read up to different offsets.

        For a source that a plan contains several times, Spark logs as many equal entries.
        """
        merged = self.source_offsets
        read = (each for source in self.sources for each in source.offsets.items())
        return sorted({name for name, offset in read if merged[name] != offset})

    @property
    def is_whole(self) -> bool:
        """True if the batch reads nothing beyond `source_offsets`."""
        known = all(source.is_kafka_like for source in self.sources)
        return known and not self.read_differently


def read_query_id(checkpoint: str) -> Operation[str]:
    """Return the id in `<checkpoint>/metadata`. Raises ProgressError."""
    path = f"{checkpoint}/metadata"
    value = files.json_of(path, (yield from files.read_text(path)))
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise files.unreadable(path, "it has no query id")
    return str(value["id"])


def is_query_at(checkpoint: str, query_id: str) -> Operation[bool]:
    """True if `checkpoint` belongs to this query. Raises ProgressError if it cannot be read."""
    found = yield from files.read_file(f"{checkpoint}/metadata")
    try:
        return found is not None and json.loads(found).get("id") == query_id
    except (ValueError, AttributeError):
        return False


def check_uncommitted(checkpoint: str, batch_id: int) -> Operation[None]:
    """Raise TxnLogError if Spark has noted the batch as done: the checkpoint is another query's."""
    path = f"{checkpoint}/commits/{batch_id}"
    if (yield from files.read_file(path)) is not None:
        raise TxnLogError(
            f"batch {batch_id} is to be committed, but {path} exists already: set "
            "checkpointLocation to this query's own checkpoint"
        )


def read_batch_offsets(checkpoint: str, batch_id: int) -> Operation[BatchOffsets]:
    """Return an entry of Spark's log. Raises ProgressError if it is missing or incomplete."""
    path = offsets_path(checkpoint, batch_id)
    return parse_batch_offsets(path, (yield from files.read_text(path)))


def read_logged_offsets(checkpoint: str, batch_id: int) -> Operation[BatchOffsets | None]:
    """Return an entry of the log, None if purged (`minBatchesToRetain`). Raises ProgressError."""
    path = offsets_path(checkpoint, batch_id)
    data = yield from files.read_file(path)
    return None if data is None else parse_batch_offsets(path, files.text_of(path, data))


def newest_batch(checkpoint: str, log: str = "offsets") -> Operation[int]:
    """Return the newest batch in a log of Spark's, -1 for none. Raises ProgressError."""
    names = yield from files.list_folder(f"{checkpoint}/{log}")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def is_rewriting(checkpoint: str, batch_id: int) -> Operation[bool]:
    """True if the batch was Spark's own, which no sink sees.

    Such a batch ends where the batch before it ended, and changes the number of partitions of the
    state (Spark's tool for that) or the version of the log (Spark 5, SPARK-55795).
    """
    logged = yield from read_logged_offsets(checkpoint, batch_id)
    before = yield from read_logged_offsets(checkpoint, batch_id - 1)
    done = yield from files.read_file(f"{checkpoint}/commits/{batch_id}")
    if logged is None or before is None or done is None:
        return False
    return logged.form != before.form and logged.ends == before.ends


def offsets_path(checkpoint: str, batch_id: int) -> str:
    """Return the path of a batch's entry in Spark's offset log."""
    return f"{checkpoint}/offsets/{batch_id}"


def parse_batch_offsets(path: str, text: str) -> BatchOffsets:
    """Parse an entry of Spark's offset log. Raises ProgressError, naming `path`."""
    lines = text.splitlines()
    version = lines[0].strip() if lines else "nothing"
    if version not in ("v1", "v2"):
        raise files.unreadable(path, f"it begins with {version[:20]!r} instead of 'v1' or 'v2'")
    if len(lines) < 3:
        raise files.unreadable(path, "it ends before the first source's offset")
    pairs = [_split_line(path, line, version) for line in lines[2:] if line.strip()]
    values = [(name, files.json_of(path, part)) for name, part in pairs if part != NO_OFFSET]
    plain = [[name, plain_offset(value)] for name, value in values]
    digest = _digest([end for _, end in plain] if version == "v1" else sorted(plain))
    ends = _digest(sorted(_digest([end]) for _, end in plain))
    sources = tuple(_source_end(path, name, value) for name, value in values)
    form = version, _state_partitions(path, lines[1])
    return BatchOffsets(sources, digest, digest_of(text)[:_DIGEST_HEX], ends, form)


def _state_partitions(path: str, metadata: str) -> str:
    """Return the logged number of the state's partitions; only repartitioning changes it."""
    value = files.json_of(path, metadata)
    conf = value.get("conf") if isinstance(value, dict) else None
    return str(conf.get(STATE_PARTITIONS, "")) if isinstance(conf, dict) else ""


def _split_line(path: str, line: str, version: str) -> tuple[str, str]:
    if version == "v1":
        return "", line.strip()
    name, colon, value = line.strip().partition(":")
    if not colon:
        raise files.unreadable(path, f"a source's line has no name: {line[:20]!r}")
    return name, value


def _source_end(path: str, name: str, value: Any) -> SourceEnd:
    if not is_source_offset(value):
        return SourceEnd(name, {}, None, is_kafka_like=False)
    try:
        return SourceEnd(name, from_json_value(value), source_note_of(value))
    except OffsetFormatError as error:
        raise files.unreadable(path, str(error)) from error


def _digest(sources: list[Any]) -> str:
    canonical = json.dumps(sources, sort_keys=True, separators=(",", ":"))
    return digest_of(canonical)[:_DIGEST_HEX]
