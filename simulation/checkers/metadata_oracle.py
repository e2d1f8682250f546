"""A witness of the cluster's metadata: one history for all brokers, in which every epoch rises.

Each broker says in its trace what it reads. The first one to read a record makes it history, and
the rules are checked then; all others have to read the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from broker_sim.core.controller.reassignment import in_progress
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration
from simulation.violation import violated

METADATA_TRACE = "metadata"
"""The kind of the trace."""


class MetadataListener:
    """Called for changes of partitions; a change that a subclass leaves out passes unseen."""

    def on_changed(self, directory: str) -> None:
        """Hear that a partition has another registration."""

    def on_unclean(self, directory: str, after: PartitionRegistration) -> None:
        """Hear that a partition where this is allowed has had an unclean election."""


class MetadataOracle:
    """Records of the metadata so far, and the brokers and partitions that they make."""

    def __init__(self, listener: MetadataListener, unsafe: Collection[str] = ()) -> None:
        """`unsafe` are the directories of partitions where an unclean election is allowed."""
        self._listener = listener
        self._unsafe = unsafe
        self.partitions: dict[str, PartitionRegistration] = {}
        """Partitions by directory, as the newest record says."""
        self.topic_ids: dict[str, str] = {}
        """Topic ids by name, of the topics that exist."""
        self.broker_epochs: dict[int, int] = {}
        """Broker epochs by id, of the registered brokers."""
        self.records: list[Mapping[str, Any]] = []
        self._names: dict[str, str] = {}
        """Names of topics, by topic id."""
        self._highest_epoch: dict[int, int] = {}
        self._next_producer_id = 0

    def on_read(self, broker: str, records: Sequence[Mapping[str, Any]], next_offset: int) -> None:
        """Note that a broker has read these records, up to the offset. Raises Violation (9)."""
        for offset, record in enumerate(records, next_offset - len(records)):
            if offset < len(self.records):
                if self.records[offset] != record:
                    violated(9, "two brokers have two histories", broker=broker, offset=offset,
                             record=record, known=self.records[offset])  # fmt: skip
            else:
                self.records.append(record)
                self._follow(record)

    def _follow(self, record: Mapping[str, Any]) -> None:
        match record["type"]:
            case "topic":
                self._names[record["topic_id"]] = record["name"]
                self.topic_ids[record["name"]] = record["topic_id"]
                self._add(record["name"], record)
            case "topic-changed":
                self._add(self._names[record["topic_id"]], record)
            case "topic-deleted":
                self._remove(self._names[record["topic_id"]])
            case "partition-changed":
                directory = f"{self._names[record['topic_id']]}-{record['partition']}"
                after = PartitionRegistration.of_record(record["registration"])
                self._change(directory, after, is_unclean=record.get("unclean", False))
            case "broker-registered":
                self._register(record["broker"], record["epoch"])
            case "broker-fenced":
                self.broker_epochs.pop(record["broker"], None)
            case "producer-ids":
                self._allocate(record["next_producer_id"])

    def _add(self, topic: str, record: Mapping[str, Any]) -> None:
        """Add new partitions of a topic, after its present ones."""
        known = sum(name.rpartition("-")[0] == topic for name in self.partitions)
        for number, fields in enumerate(record.get("registrations", ()), known):
            self.partitions[f"{topic}-{number}"] = PartitionRegistration.of_record(fields)

    def _remove(self, topic: str) -> None:
        del self.topic_ids[topic]
        for name in [name for name in self.partitions if name.rpartition("-")[0] == topic]:
            del self.partitions[name]

    def _change(self, directory: str, after: PartitionRegistration, *, is_unclean: bool) -> None:
        before = self.partitions[directory]
        self.partitions[directory] = after
        where = {"partition": directory, "before": before, "after": after}
        if after.partition_epoch <= before.partition_epoch:
            violated(9, "a partition epoch does not rise", **where)
        if after.leader_epoch < before.leader_epoch:
            violated(9, "a leader epoch goes back", **where)
        if after.leader not in (before.leader, NO_LEADER):
            if after.leader_epoch == before.leader_epoch:
                violated(9, "two brokers lead in one leader epoch", **where)
            # By one record the last replica that a reassignment waits for comes into the ISR, and
            # the leader goes.
            moved = in_progress(before) and not in_progress(after)
            is_allowed = is_unclean and directory in self._unsafe
            if after.leader not in (after.isr if moved else before.isr) and not is_allowed:
                violated(9, "a leader that was not in the ISR", **where)
            if is_allowed:
                self._listener.on_unclean(directory, after)
        if after.leader != NO_LEADER and after.leader not in self.broker_epochs:
            violated(9, "a leader that is not registered", **where)
        self._listener.on_changed(directory)

    def _register(self, broker: int, epoch: int) -> None:
        if epoch <= self._highest_epoch.get(broker, -1):
            violated(9, "a broker epoch does not rise", broker=broker, epoch=epoch)
        self._highest_epoch[broker] = self.broker_epochs[broker] = epoch

    def _allocate(self, next_producer_id: int) -> None:
        if next_producer_id <= self._next_producer_id:
            violated(16, "a block of producer ids was given twice", ends=next_producer_id,
                     known=self._next_producer_id)  # fmt: skip
        self._next_producer_id = next_producer_id
