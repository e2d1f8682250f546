"""History of a group's members: their requests and answers, and the rules for them from outside.

Generations are compared in real time: a request sent after a newer generation was heard of may have
no effect. Offsets that a stable read returned, or that a commit was answered for, are a floor for
every later read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.violation import violated
from txnlog_kafka.wire.records import Record

NOTHING_COMMITTED = -1


class Committed(NamedTuple):
    """A committed offset, the next one to be read, with what was said about it."""

    offset: int
    leader_epoch: int
    metadata: str


def _key(number: int) -> bytes:
    """Return the key of the records in the copiers' transaction of this number."""
    return b"%08d" % number


@dataclass(slots=True)
class _Copy:
    """A transaction of a copier, and the offsets that it committed."""

    transactional_id: str
    offsets: Mapping[int, int]
    is_over: int | None = None
    """Count of copiers' initialisations after which this transaction is decided.

    That is the count when its own transactional id was initialised once more.
    """


_NOTHING = Committed(NOTHING_COMMITTED, -1, "")


def metadata_of(generation: int, offset: int) -> str:
    """Return the metadata of a member's commit; the commit's leader epoch is the generation."""
    return f"{generation}:{offset}"


@dataclass(slots=True)
class GroupHistory:
    """History of a group that reads a single topic."""

    is_coordinator: Callable[[int], bool] = lambda _node: True
    """By the newest metadata. A broker that has not heard yet that it coordinates the group no more
    answers OffsetFetch by what it knows, as Kafka's does: such an answer says nothing here."""
    newest_generation: int = 0
    """The highest that a member was answered to belong to."""
    floors: dict[int, int] = field(default_factory=dict)
    """By partition: what was committed for sure, or returned."""
    initialised: int = 0
    """Count of new epochs that copiers were given."""
    processed: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets by partition, noted before they are committed."""
    _owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """By generation and partition."""
    _sent: set[tuple[int, Committed]] = field(default_factory=set)
    """Sent commits by partition, whatever their outcome."""
    _copies: list[_Copy] = field(default_factory=list)
    """Transactions of the copiers."""
    _reads: list[tuple[int, Mapping[int, Committed]]] = field(default_factory=list)
    """Results of stable reads, each with the count of copiers' initialisations when it was sent."""

    def on_assigned(self, generation: int, owner: str, partitions: Iterable[int]) -> None:
        """A member was answered what it has to read. Raises Violation (74)."""
        self.newest_generation = max(self.newest_generation, generation)
        for partition in partitions:
            known = self._owners.setdefault((generation, partition), owner)
            if known != owner:
                violated(74, "two members of a generation have one partition", partition=partition,
                         generation=generation, first=known, second=owner)  # fmt: skip

    def on_processed(self, partition: int, records: Sequence[Record]) -> None:
        """A member has read these and done its work."""
        self.processed[partition].update(record.record_offset for record in records)

    def on_commit_sent(self, generation: int, offsets: Mapping[int, int]) -> int:
        """A commit leaves; returns what `on_committed` wants to know."""
        for partition, offset in offsets.items():
            committed = Committed(offset, generation, metadata_of(generation, offset))
            self._sent.add((partition, committed))
        return self.newest_generation

    def on_committed(self, generation: int, newest_when_sent: int) -> None:
        """The coordinator took a commit of this generation. Raises Violation (33)."""
        if generation < newest_when_sent:
            violated(33, "a commit of an old generation was taken", generation=generation,
                     newest=newest_when_sent)  # fmt: skip

    def on_durable(self, offsets: Mapping[int, int]) -> None:
        """These are committed for good: answered, and not part of an open transaction."""
        for partition, offset in offsets.items():
            self.floors[partition] = max(offset, self.floors.get(partition, NOTHING_COMMITTED))

    def on_copy(self, transactional_id: str, offsets: Mapping[int, int]) -> bytes:
        """A copier asks for a commit of these offsets; the key of all its copies."""
        self._copies.append(_Copy(transactional_id, dict(offsets)))
        return _key(len(self._copies) - 1)

    def on_initialised(self, transactional_id: str) -> None:
        """A copier was given a new epoch: what it had asked for before is decided (32)."""
        self.initialised += 1
        for copy in self._copies:
            if copy.transactional_id == transactional_id and copy.is_over is None:
                copy.is_over = self.initialised

    def on_stable_read(
        self,
        found: Mapping[int, Committed],
        floors_when_asked: Mapping[int, int],
        initialised_when_asked: int = 0,
    ) -> None:
        """A stable read of the group was answered. Raises Violation (32, 34)."""
        self._reads.append((initialised_when_asked, dict(found)))
        for partition, floor in floors_when_asked.items():
            committed = found.get(partition, _NOTHING)
            if committed.offset < floor:
                violated(32, "a stable read returns less than was committed", partition=partition,
                         found=committed, committed=floor)  # fmt: skip
        for partition, committed in found.items():
            if (partition, committed) not in self._sent:
                violated(34, "an offset with text that no member committed", partition=partition,
                         found=committed)  # fmt: skip
        self.on_durable({partition: each.offset for partition, each in found.items()})

    def check_processed(self, partition: int, records: Sequence[Record]) -> None:
        """Check that records below the committed offset were processed. Raises Violation (3)."""
        end = self.floors.get(partition, NOTHING_COMMITTED)
        offsets = {record.record_offset for record in records if record.record_offset < end}
        missing = sorted(offsets - self.processed[partition])
        if missing:
            violated(3, "offsets are committed of records that no member has processed",
                     partition=partition, missing=missing, committed=end)  # fmt: skip

    def check_copied(
        self, originals: Mapping[int, Sequence[Record]], copies: Sequence[Record]
    ) -> None:
        """Each record below the committed offset was copied once, in the transaction of the
        commit, and no other was. Raises Violation (20, 33)."""
        found = Counter((record.value or b"").decode() for record in copies)
        wanted = {
            f"{partition}:{record.record_offset}"
            for partition, records in originals.items()
            for record in records
            if record.record_offset < self.floors.get(partition, NOTHING_COMMITTED)
        }
        twice = sorted(name for name, count in found.items() if count > 1)
        if twice:
            violated(33, "members of two generations copied a record", twice=twice)
        if set(found) != wanted:
            violated(20, "copies and committed offsets are not of the same transactions",
                     missing=sorted(wanted - set(found)),
                     foreign=sorted(set(found) - wanted))  # fmt: skip
        self._check_reads({record.key for record in copies})

    def _check_reads(self, keys: Collection[bytes | None]) -> None:
        """Check that stable reads found the offsets of each transaction whose copies exist (32).

        Only reads count that were sent after its copier had been initialised once more, whether or
        not that copier knew of its commit.
        """
        for number, copy in enumerate(self._copies):
            if copy.is_over is None or _key(number) not in keys:
                continue
            for asked, found in self._reads:
                short = {
                    partition: found.get(partition, _NOTHING)
                    for partition, offset in copy.offsets.items()
                    if asked >= copy.is_over and found.get(partition, _NOTHING).offset < offset
                }
                if short:
                    violated(32, "a stable read after InitProducerId lacks a commit of before",
                             transaction=copy, found=short)  # fmt: skip
