"""Check ISR changes by leaders: the checks of Kafka's AlterPartition, in their order."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.controller.registrations import PartitionRegistration
from txnlog_kafka.wire.error_codes import ErrorCode

UNKNOWN_BROKER_EPOCH = -1
"""In a new ISR: the leader does not know this broker's epoch, so it is not checked."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """ISR that a leader asks for, and the epochs of the partition that it knows."""

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """(broker, its broker epoch), KIP-903: the epoch by which it fetched what it has."""


class AlteredPartition(NamedTuple):
    """Result of an ISR change; without an error, `after` is the partition after it."""

    change: IsrChange
    error: ErrorCode
    after: PartitionRegistration | None = None


def check_isr_change(
    partition: PartitionRegistration, broker_id: int, change: IsrChange, image: ClusterImage
) -> ErrorCode:
    """NONE when the broker may alter the ISR so.

    Epochs above those of the image are of changes that it has not seen, so a controller that
    decides by it is the controller no more: NOT_CONTROLLER. Before version 2 of the API an
    ineligible replica was OPERATION_NOT_ATTEMPTED; Kafka 4 has no such version any more.
    """
    newer = (
        change.leader_epoch > partition.leader_epoch
        or change.partition_epoch > partition.partition_epoch
    )
    if newer:
        return ErrorCode.NOT_CONTROLLER
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    new_isr = [broker for broker, _ in change.new_isr]
    repeated = len(set(new_isr)) != len(new_isr)
    if repeated or partition.leader not in new_isr or not set(new_isr) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, *each) for each in change.new_isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_eligible(image: ClusterImage, broker: int, epoch: int) -> bool:
    known = epoch == UNKNOWN_BROKER_EPOCH or (
        broker in image.brokers and image.brokers[broker].epoch == epoch
    )
    return known and image.is_active(broker)
