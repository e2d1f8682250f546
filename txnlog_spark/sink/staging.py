"""Staged batches: a task attempt's finished record batches, on their way to the committer.

A task attempt appends record batches as it makes them; they stay in memory while they are small and
travel inside the commit message, and go to a file when they are not. The file appears under its
name only when it is complete and flushed, named by query, batch, run and task attempt: attempts
never share one, so a retry, a speculative copy or a zombie can do no harm. What the message of a
lost attempt pointed to is removed with its batch's directory.

The file is the concatenated batches and nothing else; the message says what lies where. Reading
checks every batch's CRC, so that a torn or foreign file is an error and never wrong data.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from pyspark.sql.datasource import WriterCommitMessage

from txnlog_spark.errors import StagedBatchesInvalid, StagingFailed, TxnLogError
from txnlog_spark.protocol.values import StagedPartition, StagedPiece
from txnlog_spark.storage.local import flush_directory
from txnlog_spark.storage.location import Location
from txnlog_spark.wire.invariants import present
from txnlog_spark.wire.records import CorruptBatch, check_crc, iter_batches, record_count_of

logger = logging.getLogger(__name__)

INLINE_BYTES_MAX = 900 * 1000
"""Staged batches up to this size travel in the commit message: no file, no flush. With all around
it a message stays below the 1 MiB from which on Spark takes results by a detour."""

INLINE_TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""All commit messages of a batch together: Spark's driver collects them as the job's result."""
INLINE_TASKS_MAX = 48
INLINE_BYTES_MIN = 1024
RESULT_SIZE_PROPERTY = "spark.driver.maxResultSize"
RESULT_SIZE_SHARE = 4
"""Of spark.driver.maxResultSize, for the messages. Spark fails a job whose results are larger, and
every replay of the batch."""

CHUNK_BYTES_MAX = 64 * 1024
"""Neighbouring record batches of one partition become one chunk up to this size. The committer
holds a chunk of each partition that it is sending, so chunks are small where batches are."""

MESSAGE_VERSION = 2


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """Whole record batches of one partition: where they lie in the staged bytes."""

    topic: str
    partition: int
    position: int
    size_bytes: int
    record_count: int


@dataclass(frozen=True)
class StagedBatches(WriterCommitMessage):
    """A task attempt's commit message.

    Exactly one of `inline` and `path` is set when there is a chunk. `partition_counts` is what the
    partitioner went by, so that the committer can see that all tasks saw the same topic.
    """

    query_id: str
    run_id: str
    batch_id: int
    task_attempt_id: int
    chunks: tuple[StagedChunk, ...] = ()
    partition_counts: dict[str, int] = field(default_factory=dict)
    inline: bytes | None = None
    path: str | None = None
    record_count: int = 0
    host: str = ""
    version: int = MESSAGE_VERSION

    @property
    def size_bytes(self) -> int:
        """All record batches together."""
        return sum(chunk.size_bytes for chunk in self.chunks)


def batch_directory(root: Path, query_id: str, batch_id: int) -> Path:
    """Where the attempts of one micro-batch stage their files."""
    return root / query_id / str(batch_id)


@contextlib.contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """A full disk or a missing permission as an error that says where and what to do."""
    try:
        yield
    except OSError as error:
        raise StagingFailed(
            f"staging under {directory} failed ({error.strerror}): nothing was committed; free "
            "space or grant access there, or set stagingLocation to another shared directory"
        ) from error


def inline_limit(task_index: int, result_size: str | None = None) -> int:
    """How much a task's commit message may hold, so that a batch's messages stay bounded in all.

    A task does not know how many there are, only its own index. So the first tasks may take the
    whole limit, and those behind them share a rest as a harmonic series does, of which 10,000 terms
    are hardly more than 1,000: together INLINE_TOTAL_BYTES_MAX up to 10,000 tasks. From there on
    what is always granted counts, less than Spark's own account of a task. `result_size` is
    spark.driver.maxResultSize as it was set: all limits shrink with it.
    """
    total = INLINE_TOTAL_BYTES_MAX
    allowed = _size_in_bytes(result_size)
    if allowed:
        total = min(total, allowed // RESULT_SIZE_SHARE)
    first = min(INLINE_BYTES_MAX, total * 2 // 3 // INLINE_TASKS_MAX)
    if task_index < INLINE_TASKS_MAX:
        return max(first, INLINE_BYTES_MIN)
    return max(total // 24 // task_index, INLINE_BYTES_MIN)


_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?")


def _size_in_bytes(text: str | None) -> int:
    """Spark's way to write bytes: 512m, 1g, plain bytes; 0 for none and for what it is not."""
    found = _SIZE.fullmatch((text or "").strip().lower())
    return int(found[1]) << 10 * " kmgtp".index(found[2] or " ") if found else 0


class StagingWriter:
    """Takes a task attempt's record batches; `finish` makes them readable, `discard` forgets."""

    def __init__(
        self,
        directory: Path,
        attempt_name: str,
        *,
        inline_bytes_max: int,
        refusal: TxnLogError | None = None,
    ) -> None:
        """`refusal` is raised instead of writing the first file: where none may be."""
        self._directory = directory
        self._refusal = refusal
        self._path = directory / f"{attempt_name}-{uuid.uuid4().hex[:8]}.staged"
        self._inline_bytes_max = inline_bytes_max
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._position = 0
        self._chunks: list[StagedChunk] = []

    def append(
        self, topic: str, partition: int, batches: Iterable[bytes | bytearray | memoryview]
    ) -> None:
        """Add record batches of one partition, behind all that were added before."""
        with _disk_errors(self._directory):
            for batch in batches:
                self._write(batch)
                self._extend_chunk(topic, partition, len(batch), record_count_of(batch))

    def finish(self) -> tuple[tuple[StagedChunk, ...], bytes | None, str | None]:
        """(chunks, inline bytes, path of the complete and flushed file)."""
        if self._file is None:
            return tuple(self._chunks), bytes(self._memory) if self._chunks else None, None
        with _disk_errors(self._directory):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._unfinished.replace(self._path)
            flush_directory(self._directory)
        return tuple(self._chunks), None, str(self._path)

    def discard(self) -> None:
        """Remove what was written; the attempt failed, and why is what its caller has to hear.

        Closing writes what is still buffered, so that on a full disk it fails once more. A file
        that cannot be removed goes with its batch's directory.
        """
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)

    @property
    def _unfinished(self) -> Path:
        return self._path.with_suffix(".unfinished")

    def _write(self, batch: bytes | bytearray | memoryview) -> None:
        if self._file is None and len(self._memory) + len(batch) > self._inline_bytes_max:
            if self._refusal is not None:
                raise self._refusal
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = self._unfinished.open("wb")
            self._file.write(self._memory)
            self._memory = bytearray()
        if self._file is None:
            self._memory += batch
        else:
            self._file.write(batch)

    def _extend_chunk(self, topic: str, partition: int, size_bytes: int, record_count: int) -> None:
        last = self._chunks[-1] if self._chunks else None
        joins = (
            last is not None
            and (last.topic, last.partition) == (topic, partition)
            and last.size_bytes + size_bytes <= CHUNK_BYTES_MAX
        )
        if last is not None and joins:
            self._chunks[-1] = StagedChunk(
                topic,
                partition,
                last.position,
                last.size_bytes + size_bytes,
                last.record_count + record_count,
            )
        else:
            self._chunks.append(
                StagedChunk(topic, partition, self._position, size_bytes, record_count)
            )
        self._position += size_bytes


def plan_staged(messages: Sequence[StagedBatches]) -> list[StagedPartition]:
    """Each partition's record batches, read when they are needed; in the order of the tasks.

    Raises StagedBatchesInvalid for a message of another version of this package.
    """
    found: dict[tuple[str, int], list[StagedPiece]] = {}
    for message in messages:
        if message.version != MESSAGE_VERSION:
            raise StagedBatchesInvalid(
                f"a task staged batches in version {message.version}, the driver reads "
                f"{MESSAGE_VERSION}: install one version of txnlog_spark on all machines"
            )
        for chunk in message.chunks:
            piece = StagedPiece(chunk.size_bytes, chunk.record_count, (message, chunk))
            found.setdefault((chunk.topic, chunk.partition), []).append(piece)
    return [
        StagedPartition(topic, partition, tuple(pieces))
        for (topic, partition), pieces in sorted(found.items())
    ]


def read_piece(piece: StagedPiece) -> bytes | memoryview:
    """The bytes of a piece of `plan_staged`, checked. Raises StagedBatchesInvalid.

    No file stays open between two pieces: all partitions of a batch are read side by side, and a
    topic may have more of them than a process may have open files.
    """
    message, chunk = cast("tuple[StagedBatches, StagedChunk]", piece.source)
    data: bytes | memoryview
    if message.path is None:
        inline = present(message.inline, "batches without a file are in the message")
        data = memoryview(inline)[chunk.position :][: chunk.size_bytes]
    else:
        with _open(message, message.path) as file:
            file.seek(chunk.position)
            data = file.read(chunk.size_bytes)
    _check_batches(data, message, chunk)
    return data


def _open(message: StagedBatches, path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise StagedBatchesInvalid(
            f"staged file {path} cannot be opened on the driver's machine {socket.gethostname()} "
            f"({error.strerror}); a task wrote it on {message.host or 'an executor'}. Nothing was "
            "committed. Set stagingLocation to a directory that all executors and the driver "
            "share, under the same path: a local disk, and the temporary directory of a batch "
            "write, are shared in local mode only"
        ) from error


def _check_batches(data: bytes | memoryview, message: StagedBatches, chunk: StagedChunk) -> None:
    """Raise StagedBatchesInvalid unless `data` is exactly whole batches with right CRCs."""
    end = 0
    try:
        for header, position in iter_batches(data):
            check_crc(data, position, header)
            end = position + header.size_bytes
    except CorruptBatch as error:
        raise _invalid(message, chunk, str(error)) from error
    if end != chunk.size_bytes or len(data) != chunk.size_bytes:
        raise _invalid(message, chunk, f"{len(data)} bytes with {end} of whole batches")


def _invalid(message: StagedBatches, chunk: StagedChunk, reason: str) -> StagedBatchesInvalid:
    where = message.path or f"the commit message of task attempt {message.task_attempt_id}"
    return StagedBatchesInvalid(
        f"staged batches of {chunk.topic}-{chunk.partition} in {where} are damaged ({reason}): "
        "nothing was committed, restart the query to replay the batch"
    )


def default_root(checkpoint: Location | None, staging_location: Location | None) -> Path:
    """The option, else inside the checkpoint if it is on a disk, else the temporary directory."""
    if staging_location is not None and staging_location.local is not None:
        return staging_location.local
    if checkpoint is not None and checkpoint.local is not None:
        return checkpoint.local / "txnlog" / "staging"
    return Path(tempfile.gettempdir()) / "txnlog-staging"


def abandon_message(message: StagedBatches | None) -> None:
    """Remove the file that a message points to, if there is one."""
    if message is not None and message.path is not None:
        _remove(Path(message.path))


def remove_all(root: Path, query_id: str) -> None:
    """Remove everything that a query or a batch write has staged."""
    _remove(root / query_id)


def remove_other_runs(root: Path, query_id: str, batch_id: int, run_id: str) -> None:
    """Remove what earlier runs of the query staged for this batch: each crash leaves a whole copy.

    Only for who has fenced those runs: a driver of one of them that still reads its files could
    not commit what it reads. What this run's attempts stage has its name and stays.
    """
    for path in batch_directory(root, query_id, batch_id).glob("*"):
        if run_id and not path.name.startswith(f"{run_id}-"):
            _remove(path)


_not_removed: set[Path] = set()
"""What a warning was logged for: it would come again with every batch."""


def _remove(path: Path) -> None:
    """Remove a file or a directory. What is in the way is logged, once: the batch is committed."""
    reason: OSError | None = None
    try:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        if path.is_dir():
            # As much as can go is gone. Again, for the error that says why not all.
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        reason = error
    if reason is not None and path not in _not_removed:
        _not_removed.add(path)
        logger.warning(
            "staged files in %s cannot be removed and take up space: %s. Driver and executors must "
            "be allowed to remove each other's files there (one user, or a shared group)",
            path,
            reason,
        )


def remove_batches(root: Path, query_id: str, batch_id: int) -> None:
    """Remove the directories of `batch_id` and all before it, leftovers of lost attempts too."""
    for directory in (root / query_id).glob("*"):
        if directory.name.isdigit() and int(directory.name) <= batch_id:
            _remove(directory)
