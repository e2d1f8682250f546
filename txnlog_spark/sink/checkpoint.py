"""What the committer reads from Spark's checkpoint, and the one file that it keeps there.

Read: `metadata` (the query id) and `offsets/<batchId>`, Spark's write-ahead log of the batch's
source offsets (`OffsetSeqLog`): a line with the version, a line of JSON metadata, then one line per
source. It is written before the batch runs and never changed, so it holds for any plan and for any
Kafka-like source, ours or the JVM's.

Kept: `txnlog/identity.json`, who produced last. Its existence says that progress must exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txnlog_spark.errors import ProgressError
from txnlog_spark.offsets import (
    OffsetFormatError,
    TopicPartition,
    committed_start_of,
    from_json_value,
    is_source_offset,
    plain_offset,
)
from txnlog_spark.protocol.values import ExpectedOffsets, Partition
from txnlog_spark.sink.files import write_atomically

OFFSET_LOG_VERSION = "v1"
NO_OFFSET = "-"
"""A source that had not yet an offset (Spark's `SERIALIZED_VOID_OFFSET`)."""
IDENTITY_VERSION = 2
"""2 added where the progress lies and how far it has come; files of version 1 are read."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """A batch's source offsets: per partition the next offset to read (exclusive end).

    `digest` covers every source's line, other formats included: it tells one plan of the batch
    from another. `expected` is not empty for a batch that starts from committed offsets.
    `is_whole` says that `source_offsets` are all that the batch reads up to: every source is a
    Kafka-like one, and no two of them read one partition.
    """

    source_offsets: dict[TopicPartition, int]
    digest: str
    expected: tuple[ExpectedOffsets, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class RecordedIdentity:
    """The producer that committed last, the query run that it belongs to, and the progress.

    The progress of all batches is committed for one group and one partition, chosen before the
    first: `progress_partition` is None in a file of version 1, which does not say it. The brokers
    must have at least `next_batch_id`; it may be behind them by what was committed last.
    """

    query_id: str
    run_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    progress_group_id: str
    progress_partition: Partition | None
    next_batch_id: int


def read_query_id(checkpoint: Path) -> str:
    """The id in `<checkpoint>/metadata`. Raises ProgressError."""
    path = checkpoint / "metadata"
    value = _json_of(path, _text_of(path))
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise _unreadable(path, "it has no query id")
    return str(value["id"])


def read_batch_offsets(checkpoint: Path, batch_id: int) -> BatchOffsets:
    """The sources' end offsets of one batch. Raises ProgressError for a file that is not whole."""
    path = checkpoint / "offsets" / str(batch_id)
    lines = _text_of(path).splitlines()
    if not lines or lines[0].strip() != OFFSET_LOG_VERSION:
        version = lines[0][:20] if lines else "nothing"
        raise _unreadable(path, f"it begins with {version!r} instead of {OFFSET_LOG_VERSION!r}")
    if len(lines) < 3:
        raise _unreadable(path, "it ends before the first source's offset")
    sources = [_json_of(path, line) for line in lines[2:] if line.strip() not in ("", NO_OFFSET)]
    return BatchOffsets(
        merge_source_offsets(sources),
        _digest([plain_offset(source) for source in sources]),
        tuple(_expected_offsets(path, sources)),
        _is_whole(sources),
    )


def read_previous_offsets(checkpoint: Path, batch_id: int) -> dict[TopicPartition, int]:
    """The sources' end offsets of the batch before; {} before the first, or where it was purged.

    Spark keeps `spark.sql.streaming.minBatchesToRetain` batches. Raises ProgressError for a file
    that is not whole.
    """
    if not (checkpoint / "offsets" / str(batch_id - 1)).exists():
        return {}
    return read_batch_offsets(checkpoint, batch_id - 1).source_offsets


def merge_source_offsets(sources: Iterable[Any]) -> dict[TopicPartition, int]:
    """The Kafka-like sources' offsets in one; a partition read twice counts as far as both read."""
    merged: dict[TopicPartition, int] = {}
    for value in sources:
        if not is_source_offset(value):
            continue
        for partition, position in from_json_value(value).items():
            merged[partition] = min(position, merged.get(partition, position))
    return merged


def _is_whole(sources: Iterable[Any]) -> bool:
    seen: set[TopicPartition] = set()
    for value in sources:
        if not is_source_offset(value):
            return False
        names = set(from_json_value(value))
        if names & seen:
            return False
        seen |= names
    return True


def _expected_offsets(path: Path, sources: Iterable[Any]) -> Iterator[ExpectedOffsets]:
    for value in sources:
        try:
            start = committed_start_of(value)
            if start is not None:
                names = from_json_value(value)
                committed: dict[Partition, int | None] = {p: start.committed.get(p) for p in names}
                yield ExpectedOffsets(start.group_id, committed)
        except OffsetFormatError as error:
            raise _unreadable(path, str(error)) from error


def read_identity(checkpoint: Path) -> RecordedIdentity | None:
    """The recorded identity, None before the first commit. Raises ProgressError if unreadable."""
    path = _identity_path(checkpoint)
    if not path.exists():
        return None
    value = _json_of(path, _text_of(path))
    try:
        version = value.pop("version")
        if version == 1:
            value.update(progress_group_id="", progress_partition=None, next_batch_id=0)
        elif version != IDENTITY_VERSION:
            raise _unreadable(path, "it is of a newer version of txnlog_spark")
        if value["progress_partition"] is not None:
            topic, number = value["progress_partition"]
            value["progress_partition"] = str(topic), int(number)
        value["next_batch_id"] = int(value["next_batch_id"])
        return RecordedIdentity(**value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, f"unexpected content: {error}") from error


def write_identity(checkpoint: Path, identity: RecordedIdentity) -> None:
    """Replace the recorded identity, durably."""
    value = {"version": IDENTITY_VERSION, **asdict(identity)}
    write_atomically(_identity_path(checkpoint), json.dumps(value, indent=1).encode())


def _identity_path(checkpoint: Path) -> Path:
    return checkpoint / "txnlog" / "identity.json"


def _digest(sources: list[Any]) -> str:
    canonical = json.dumps(sources, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _unreadable(path, reason or type(error).__name__) from error


def _json_of(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreadable(path, f"no JSON: {error}") from error


def _unreadable(path: Path, reason: str) -> ProgressError:
    return ProgressError(
        f"checkpoint file {path} cannot be used: {reason}. Give checkpointLocation as the writer's "
        "option and as a directory that the driver can read; if the file is damaged, restore the "
        "checkpoint, or start a new one with startingOffsets=committed"
    )
