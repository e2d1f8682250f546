"""Content of a broker of the core, which a test reads and changes without a request."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

from support.core.broker_build import SMALL, BrokerOnDisk

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.configs import Resource
from broker_sim.core.group.requests import OffsetCommit, OffsetErrors, OffsetToCommit
from broker_sim.core.parts import BrokerParts
from broker_sim.core.transaction.results import TransactionDescription
from simulation.checkers.batches import Batch, decode_batches
from txnlog_kafka.wire.records import MarkerType

Offsets = dict[tuple[str, int], tuple[int, str]]
"""A group's offsets by partition, each with its metadata."""


class CoreContent:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.core = BrokerOnDisk(self.options)

    @property
    def parts(self) -> BrokerParts:
        return self.core.broker.parts

    def restart(self, **options: Any) -> None:
        """The broker is started anew, with these options changed."""
        self.options |= {name.replace("_", "."): value for name, value in options.items()}
        self.core.config = BrokerConfig(SMALL | self.options)
        self.core.kill()

    def fork(self) -> Self:
        """A broker that knows what this one knows now, and hears of nothing more."""
        made = copy.copy(self)
        made.core = BrokerOnDisk(self.options, disk=copy.deepcopy(self.core.disk))
        made.core.now_ms, made.core.monotonic_ms = self.core.now_ms, self.core.monotonic_ms
        return made

    # ------------------------------------------------------------------ topics

    def create_topics(self, **partitions: int) -> None:
        topics = self.parts.topics
        planned = [topics.plan(name, partition_count=n) for name, n in partitions.items()]
        self.core.cause(lambda effects: topics.create_all(planned, effects))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and the offsets that were committed for it, as Kafka does."""
        parts = self.parts
        self.core.cause(lambda effects: parts.topics.delete(parts.image.topics[topic], effects))

    def configure(self, topic: str, **configs: Any) -> None:
        """A topic has these options, and all others their defaults."""
        pairs = [(name.replace("_", "."), str(value)) for name, value in configs.items()]
        self.core.cause(self.parts.configs.plan_replacement(Resource.TOPIC, topic, pairs))

    # ------------------------------------------------------------------ records

    def log_bytes(self, topic: str, partition: int) -> bytes:
        log = self.parts.logs.get(topic, partition)
        return b"".join(data for _, data in log.batches(0))

    def batches(self, topic: str, partition: int) -> list[Batch]:
        """Return the batches of a log without its markers."""
        return [b for b in decode_batches(self.log_bytes(topic, partition)) if b.marker is None]

    def values(self, topic: str, partition: int) -> list[bytes]:
        return [r.value or b"" for b in self.batches(topic, partition) for r in b.records]

    def committed_values(self, topic: str, partition: int) -> list[bytes]:
        """Return the values of committed transactions."""
        found: list[bytes] = []
        decided: dict[int, MarkerType] = {}
        for batch in reversed(list(decode_batches(self.log_bytes(topic, partition)))):
            if batch.marker is not None:
                decided[batch.header.producer_id] = batch.marker.marker_type
            elif decided.get(batch.header.producer_id) is MarkerType.COMMIT:
                found[:0] = [record.value or b"" for record in batch.records]
        return found

    # ------------------------------------------------------------------ coordinators

    def transaction(self, transactional_id: str) -> TransactionDescription:
        return self.parts.transactions.describe(transactional_id)

    def offsets(self, group_id: str) -> Offsets:
        """Return the committed offsets of a group, if there are any."""
        found = self.parts.groups.offset_fetch(group_id, None, require_stable=False).offsets
        return {(o.topic, o.partition): (o.committed_offset, o.metadata or "") for o in found}

    def commit_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Commit offsets as a consumer outside of the group does."""
        commits = [
            OffsetToCommit(topic, number, offset, -1, metadata)
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        answers: list[OffsetErrors] = []
        commit = OffsetCommit(group_id=group_id, offsets=tuple(commits))
        groups = self.parts.groups
        self.core.cause(
            lambda effects: groups.offset_commit(commit, lambda e, _: answers.append(e), effects)
        )
        assert not any(answers[0].values()), answers
