"""What a client asks a cluster for: topics, offsets, groups, transactions; as plain calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeVar

from txnlog_kafka.operations import admin as operations
from txnlog_kafka.operations import metadata, offsets
from txnlog_kafka.operations.admin import TransactionDescription, TransactionListing
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.offsets import CommittedOffset, ListedOffset
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition

T = TypeVar("T")


class Administration(ABC):
    """Each carries one operation to its end; a `Client` is one of these."""

    session: Session

    @abstractmethod
    def run(self, operation: Operation[T]) -> T:
        """Carry the operation to its end and return its result, or raise what it raised."""

    def topic_partitions(
        self, topics: Iterable[str] | None, *, allow_auto_create: bool = False
    ) -> dict[str, tuple[int, ...]]:
        """Partition numbers by topic; None asks for all topics, internal ones left out.

        Raises UnknownTopic naming every topic that is missing, DeadlineExceeded.
        """
        if topics is None:
            return self.run(metadata.matching_topics(self.session, lambda _topic: True))
        return self.run(
            metadata.topic_partitions(self.session, topics, allow_auto_create=allow_auto_create)
        )

    def confirm_missing(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of `partitions` that the cluster does not have, asked repeatedly for a while."""
        return self.run(metadata.confirm_missing(self.session, partitions))

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> dict[TopicPartition, ListedOffset]:
        """Per partition: EARLIEST, LATEST (the LSO under read_committed) or a timestamp in ms.

        For a timestamp `offset` is -1 when no record is that new. Raises UnknownTopic.
        """
        return self.run(offsets.list_offsets(self.session, specs, read_committed=read_committed))

    def committed_offsets(
        self,
        group_id: str,
        *,
        partitions: Iterable[TopicPartition] = (),
        require_stable: bool = True,
    ) -> dict[TopicPartition, int]:
        """All committed offsets of a group; empty for an unknown one.

        Name the `partitions` that matter: Kafka does not report a partition whose first offset ever
        is still undecided, unless it is asked for by name.
        """
        found = self.run(
            offsets.fetch_committed(
                self.session, group_id, partitions=partitions, require_stable=require_stable
            )
        )
        return {partition: c.committed_offset for partition, c in found.items()}

    def commit_offsets(self, group_id: str, committed: Mapping[TopicPartition, int]) -> None:
        """A plain OffsetCommit outside any transaction and any group membership."""
        values = {partition: CommittedOffset(offset, "") for partition, offset in committed.items()}
        self.run(offsets.commit_offsets(self.session, group_id, values))

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        exists_ok: bool = False,
    ) -> None:
        """Create a topic and wait until it has leaders."""
        self.run(
            operations.create_topic(
                self.session,
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
                exists_ok=exists_ok,
            )
        )

    def delete_group(self, group_id: str, *, missing_ok: bool = False) -> None:
        """Delete a group and all its offsets."""
        self.run(operations.delete_group(self.session, group_id, missing_ok=missing_ok))

    def list_groups(self) -> tuple[str, ...]:
        """The ids of all groups."""
        return self.run(operations.list_groups(self.session))

    def list_transactions(self, states: Iterable[str] = ()) -> tuple[TransactionListing, ...]:
        """All transactional ids with their producer ids and states."""
        return self.run(operations.list_transactions(self.session, states))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """What the coordinator knows of a transactional id; None when it does not know it."""
        return self.run(operations.describe_transaction(self.session, transactional_id))

    def describe_decided_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """The same, once its markers are written if it is decided. Raises DeadlineExceeded."""
        return self.run(operations.describe_decided_transaction(self.session, transactional_id))
