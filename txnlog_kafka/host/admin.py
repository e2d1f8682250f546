"""Administration of a cluster, as plain calls: topics, offsets, groups, transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeVar

from txnlog_kafka.operations import admin as operations
from txnlog_kafka.operations import metadata, offsets
from txnlog_kafka.operations.admin import GroupListing, TransactionDescription, TransactionListing
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.offsets import CommittedOffset, ListedOffset
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition

T = TypeVar("T")


class Administration(ABC):
    """Plain calls, each of which carries one operation to its end; a `Client` is one of these."""

    session: Session

    @abstractmethod
    def run(self, operation: Operation[T]) -> T:
        """Carry the operation to its end and return its result, or raise its error."""

    def topic_partitions(
        self, topics: Iterable[str] | None, *, allow_auto_create: bool = False
    ) -> dict[str, tuple[int, ...]]:
        """Return partition numbers by topic; None asks for all topics, without internal topics.

        Raises UnknownTopic naming every topic that is missing, DeadlineExceeded.
        """
        if topics is None:
            return self.run(metadata.matching_topics(self.session, lambda _topic: True))
        return self.run(
            metadata.topic_partitions(self.session, topics, allow_auto_create=allow_auto_create)
        )

    def confirm_missing(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the `partitions` that the cluster does not have, asked repeatedly for a while."""
        return self.run(metadata.confirm_missing(self.session, partitions))

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> dict[TopicPartition, ListedOffset]:
        """Return an offset per partition: EARLIEST, LATEST (the LSO under read_committed) or a
        timestamp in ms.

        For a timestamp `offset` is -1 if no record is that new. Raises UnknownTopic.
        """
        return self.run(offsets.list_offsets(self.session, specs, read_committed=read_committed))

    def committed_offsets(
        self,
        group_id: str,
        *,
        partitions: Iterable[TopicPartition] = (),
        require_stable: bool = True,
    ) -> dict[TopicPartition, int]:
        """Return all committed offsets of a group; {} for an unknown group.

        Name the `partitions` that matter: unless asked by name, Kafka does not report a partition
        whose first offset ever is still undecided.
        """
        found = self.run(
            offsets.fetch_committed(
                self.session, group_id, partitions=partitions, require_stable=require_stable
            )
        )
        return {partition: c.committed_offset for partition, c in found.items()}

    def commit_offsets(self, group_id: str, committed: Mapping[TopicPartition, int]) -> None:
        """Commit offsets by a plain OffsetCommit, without a transaction or a group membership."""
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

    def list_groups(self, states: Iterable[str] = ()) -> tuple[GroupListing, ...]:
        """Return all groups with their states."""
        return self.run(operations.list_groups(self.session, states))

    def list_transactions(self, states: Iterable[str] = ()) -> tuple[TransactionListing, ...]:
        """Return all transactional ids with their producer ids and states."""
        return self.run(operations.list_transactions(self.session, states))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """Return the coordinator's description of a transactional id; None if it is unknown."""
        return self.run(operations.describe_transaction(self.session, transactional_id))

    def describe_decided_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """Return the description after a decided transaction's markers. Raises DeadlineExceeded."""
        return self.run(operations.describe_decided_transaction(self.session, transactional_id))
