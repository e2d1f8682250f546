"""Loading the log of a replica among others: damage ends it, and the others have the rest.

A broker that is alone keeps what lies behind damage, and says CORRUPT_MESSAGE in between: nobody
else has it. A follower asks its leader for what comes after its log's end, so a log with a hole
would stay as it is for ever. It is therefore cut where the damage begins, as Kafka's
`LogSegment.recover` and `LogLoader` do, and fetched again from there.

The segment states go first, for what they say is not true any more, and then segments from the last
one on; so a crash in between leaves damage that the next start finds again, with nothing missing
before it, or a log that is cut already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from broker_sim.core.effects import Delete, Effects, Storage, Truncate, Volume
from broker_sim.core.log import segment_states
from broker_sim.core.log.loading import Folder, KnownAtStart, LoadedLog
from broker_sim.core.log.recovery import DamagedLog, create_log, load_log
from broker_sim.core.log.segment import SUFFIXES, Segment
from txnlog_kafka.wire.invariants import InvariantViolation


def load_by_policy(folder: Folder, known: KnownAtStart, effects: Effects) -> LoadedLog:
    """Load a log with `load_log`; if it has other replicas, read it all and cut it at damage.

    A log with other replicas never raises DamagedLog: if it ends below its log start, it becomes an
    empty log that begins there.
    """
    load = _load_cut if known.has_other_replicas else load_log
    loaded = load(folder, known, effects)
    loaded.high_watermark = known.high_watermark
    return loaded


def _load_cut(folder: Folder, known: KnownAtStart, effects: Effects) -> LoadedLog:
    # Each cut takes the segments away that come after it, or all of the log has been read.
    for _ in range(2 + len(folder.storage.list(folder.directory))):
        tried = Effects(effects.now_ms, effects.monotonic_ms)
        try:
            loaded = load_log(folder, known, tried)
        except DamagedLog as error:
            effects.trace("damaged-file", path=folder.directory, reason=str(error))
            effects.storage.append(Delete(folder.directory))
            return create_log(folder, effects, base_offset=known.log_start_offset)
        damaged = (at for at, segment in enumerate(loaded.segments) if segment.damaged)
        at = next(damaged, None)
        effects.traces += tried.traces
        if at is None:
            effects.storage += tried.storage
            return loaded
        folder = _cut_segments(folder, loaded.segments[at:], effects)
        known = replace(known, clean_shutdown=False)
    raise InvariantViolation(f"{folder.directory} is damaged after every cut")


def _cut_segments(folder: Folder, segments: Sequence[Segment], effects: Effects) -> Folder:
    """Keep of the first of these segments what is whole, and of the others nothing; the folder as
    it will be."""
    damaged, *later = segments
    states = f"{folder.directory}/{segment_states.FILE_NAME}"
    gone = [segment.path(suffix) for segment in reversed(later) for suffix in SUFFIXES]
    effects.storage += [
        Delete(states),
        *(Delete(path) for path in gone),
        Truncate(damaged.path(), damaged.size_bytes),
    ]
    effects.trace("log-cut", log=folder.directory, offset=damaged.next_offset)
    ends = {damaged.path(): damaged.size_bytes}
    return replace(folder, storage=_Cut(folder.storage, frozenset((states, *gone)), ends))


class _Cut:
    """Storage as it is once the operations of `_cut_segments` are carried out."""

    def __init__(self, storage: Storage, gone: frozenset[str], ends: dict[str, int]) -> None:
        self._storage = storage
        self._gone = gone
        self._ends = ends

    def read(self, path: str, position: int, length: int) -> bytes:
        """Read like `Storage.read`, up to the new end of the file."""
        size_bytes = self.size_bytes(path) or 0
        return self._storage.read(path, position, max(0, min(length, size_bytes - position)))

    def size_bytes(self, path: str) -> int | None:
        """Return the size, up to the new end of the file; None for a deleted file."""
        if path in self._gone:
            return None
        size_bytes, end = self._storage.size_bytes(path), self._ends.get(path)
        return size_bytes if size_bytes is None or end is None else min(size_bytes, end)

    def list(self, path: str) -> tuple[str, ...]:
        """List the names like `Storage.list`, without deleted files."""
        names = self._storage.list(path)
        return tuple(name for name in names if f"{path}/{name}" not in self._gone)

    def volume(self) -> Volume | None:
        """Return `Storage.volume` of the disk."""
        return self._storage.volume()
