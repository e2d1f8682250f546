"""Decisions of the controller on partitions: Kafka's `ReplicationControlManager`.

`ReplicationControl` turns events into metadata records and an answer: brokers come and go, leaders
alter ISRs, clients elect and reassign. It changes nothing: the records are appended to the metadata
log, and the answer is sent when they are in it.

The records of a decision are ordered so that after each of them every leader is up. So a broker
that goes is fenced last, and a broker that comes is registered first.

Kafka's leader recovery state and its eligible leader replicas (KIP-966) are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.draft import Draft
from broker_sim.core.controller.election import Election
from broker_sim.core.controller.image import ClusterImage, MetadataRecord, Topic
from broker_sim.core.controller.isr_changes import AlteredPartition, IsrChange, check_isr_change
from broker_sim.core.controller.metadata_records import (
    broker_fenced_record,
    broker_registered_record,
)
from broker_sim.core.controller.placement import check_assignment
from broker_sim.core.controller.reassignment import (
    in_progress,
    reassigned,
    reverted,
    target_size,
)
from broker_sim.core.controller.registrations import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
)
from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_kafka.wire.error_codes import ErrorCode

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """Records to append as a whole, and the answer to give then."""

    records: list[MetadataRecord]
    answer: Answer


class PartitionResult(NamedTuple):
    """Result of an election or of a change of a reassignment, for a partition."""

    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


class Reassignment(NamedTuple):
    """A partition and the replicas that it is to have; None cancels what is in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class ReplicationControl:
    """Decides by an image, which must be that of the whole metadata log."""

    def __init__(self, image: ClusterImage, config: BrokerConfig) -> None:
        self._image = image
        self._config = config

    def broker_up(self, broker: BrokerRegistration) -> list[MetadataRecord]:
        """The broker has registered; it may lead what has no leader.

        One that was up under an older epoch has been started again meanwhile, so it goes first: it
        may have lost what it had. Or it is about to stop (KIP-841) and hands over what it leads;
        what it has alone has no leader then. Nothing happens for an epoch that is known, or an
        older one.
        """
        draft = self._draft()
        known = self._image.brokers.get(broker.broker_id)
        if known is not None:
            if known.epoch >= broker.epoch:
                return []
            _leave_isrs(draft, broker.broker_id)
        draft.add(broker_registered_record(broker))
        for topic, number, partition in draft.partitions():
            if partition.leader == NO_LEADER:
                draft.change(topic, number, partition)
        return draft.records

    def broker_down(self, broker_id: int) -> list[MetadataRecord]:
        """The broker's session is gone: it leads nothing, leaves every ISR, and is fenced."""
        draft = self._draft()
        if broker_id in draft.image.brokers:
            _leave_isrs(draft, broker_id)
            draft.add(broker_fenced_record(broker_id))
        return draft.records

    def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Decision[ErrorCode | list[AlteredPartition]]:
        """A leader alters ISRs (KIP-497, 704, 841, 903: AlterPartition from version 3).

        The answer is STALE_BROKER_EPOCH, or one result for each change, in their order.
        """
        known = self._image.brokers.get(broker_id)
        if known is None or known.epoch != broker_epoch:
            return Decision([], ErrorCode.STALE_BROKER_EPOCH)
        draft = self._draft()
        altered = [self._alter_one(draft, broker_id, change) for change in changes]
        return Decision(draft.records, altered)

    @staticmethod
    def _alter_one(draft: Draft, broker_id: int, change: IsrChange) -> AlteredPartition:
        topic = draft.image.topic_of_id(change.topic_id)
        if topic is None:
            return AlteredPartition(change, ErrorCode.UNKNOWN_TOPIC_ID)
        before = draft.partition(topic, change.partition)
        if before is None:
            return AlteredPartition(change, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = check_isr_change(before, broker_id, change, draft.image)
        if error is not ErrorCode.NONE:
            return AlteredPartition(change, error)
        isr = tuple(broker for broker, _ in change.new_isr)
        after = draft.change(topic, change.partition, replace(before, isr=isr)) or before
        if after.leader != broker_id:
            # The change completed a reassignment that removes this leader: unlike any other error,
            # this one comes with a change.
            return AlteredPartition(change, ErrorCode.NEW_LEADER_ELECTED)
        return AlteredPartition(change, ErrorCode.NONE, after)

    def elect_leaders(
        self, election: Election, partitions: Sequence[tuple[str, int]] | None
    ) -> Decision[list[PartitionResult]]:
        """Elect leaders on demand (KIP-183, 460), PREFERRED or UNCLEAN.

        None are all partitions; those that need no election are not in the answer then.
        """
        draft = self._draft()
        if partitions is not None:
            results = [self._elect_one(draft, election, *each) for each in partitions]
        else:
            every = [(topic.name, number) for topic, number, _ in draft.partitions()]
            tried = [self._elect_one(draft, election, *each) for each in every]
            results = [each for each in tried if each.error is not ErrorCode.ELECTION_NOT_NEEDED]
        return Decision(draft.records, results)

    @staticmethod
    def _elect_one(draft: Draft, election: Election, name: str, number: int) -> PartitionResult:
        topic = draft.image.topics.get(name)
        partition = draft.partition(topic, number)
        if topic is None or partition is None:
            return _unknown_partition(name, number)
        preferred = election is Election.PREFERRED
        needed = partition.leader != partition.replicas[0]
        if not preferred:
            needed = partition.leader == NO_LEADER
        if not needed:
            return PartitionResult(name, number, ErrorCode.ELECTION_NOT_NEEDED)
        if draft.change(topic, number, partition, election) is not None:
            return PartitionResult(name, number, ErrorCode.NONE)
        if preferred:
            return PartitionResult(name, number, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return PartitionResult(name, number, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)

    def alter_reassignments(
        self, reassignments: Sequence[Reassignment], *, allow_factor_change: bool = True
    ) -> Decision[list[PartitionResult]]:
        """Start, replace and cancel reassignments (KIP-455); KIP-860 for the replication factor."""
        draft = self._draft()
        results = []
        for each in reassignments:
            try:
                self._reassign_one(draft, each, allow_factor_change)
            except TopicRefused as refused:
                error, message = refused.error, refused.message
                results.append(PartitionResult(each.topic, each.partition, error, message))
            else:
                results.append(PartitionResult(each.topic, each.partition, ErrorCode.NONE))
        return Decision(draft.records, results)

    @staticmethod
    def _reassign_one(draft: Draft, asked: Reassignment, allow_factor_change: bool) -> None:
        topic = draft.image.topics.get(asked.topic)
        partition = draft.partition(topic, asked.partition)
        if topic is None or partition is None:
            unknown = _unknown_partition(asked.topic, asked.partition)
            raise TopicRefused(unknown.error, unknown.message or "")
        if asked.replicas is None:
            wanted, unclean = _checked_revert(draft, topic, partition)
            draft.change(topic, asked.partition, wanted, unclean=unclean)
            return
        check_assignment(asked.replicas, draft.image.registered)
        factor = target_size(partition)
        if len(asked.replicas) != factor and not allow_factor_change:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the replication factor is {factor}, and {len(asked.replicas)} replicas are given",
            )
        wanted = reassigned(partition, asked.replicas)
        draft.change(topic, asked.partition, wanted, Election.ONLINE)

    def list_reassignments(
        self, partitions: Sequence[tuple[str, int]] | None
    ) -> list[tuple[str, int, PartitionRegistration]]:
        """Return the reassignments in progress, of these partitions or of all (None).

        Unknown partitions are left out.
        """
        draft = self._draft()
        return [
            (topic.name, number, partition)
            for topic, number, partition in draft.partitions()
            if in_progress(partition) and (partitions is None or (topic.name, number) in partitions)
        ]

    def _draft(self) -> Draft:
        return Draft(self._image, self._config)


def _leave_isrs(draft: Draft, broker_id: int) -> None:
    for topic, number, partition in draft.partitions():
        if broker_id in partition.isr:
            isr = tuple(replica for replica in partition.isr if replica != broker_id)
            draft.change(topic, number, replace(partition, isr=isr), leaving=broker_id)


def _checked_revert(
    draft: Draft, topic: Topic, partition: PartitionRegistration
) -> tuple[PartitionRegistration, bool]:
    """Revert the partition with `reverted`; raise TopicRefused if that cannot be done."""
    if not in_progress(partition):
        raise TopicRefused(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
    wanted, unclean = reverted(partition)
    if unclean and not draft.unclean_allowed(topic):
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"none of the original replicas {list(wanted.replicas)} is in the ISR, and an unclean "
            "election is not allowed",
        )
    return wanted, unclean


def _unknown_partition(topic: str, partition: int) -> PartitionResult:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionResult(topic, partition, error, f"No such partition as {topic}-{partition}")
