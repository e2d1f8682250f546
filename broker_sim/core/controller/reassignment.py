"""Reassignments: how a partition's replicas become other ones (KIP-455).

A reassignment first adds: `replicas` are then the target followed by those that go, `adding` and
`removing` say which. When all of the target are in the ISR it is complete and those that go are
gone. Kafka's `PartitionReassignmentReplicas` and `PartitionReassignmentRevert`; here, functions
from a registration to the one that is wanted, whose leader and epochs are as they were.

A reassignment that replaces one in progress starts from the replicas before the first, as KIP-455
has it: what the first had added and the second does not name is both added and going. Apache Kafka
keeps the lists of the first where those of the second are empty, so that a replica that both should
keep may be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from broker_sim.core.controller.registrations import PartitionRegistration


def in_progress(partition: PartitionRegistration) -> bool:
    """True if replicas are being added or removed."""
    return bool(partition.adding or partition.removing)


def reassigned(partition: PartitionRegistration, target: Sequence[int]) -> PartitionRegistration:
    """On the way to `target`."""
    original = original_replicas(partition)
    removing = tuple(sorted(set(partition.replicas) - set(target)))
    replicas = (*target, *removing)
    adding = tuple(sorted(set(replicas) - set(original)))
    return replace(partition, replicas=replicas, adding=adding, removing=removing)


def completed(partition: PartitionRegistration) -> PartitionRegistration:
    """With its target when all of that is in the ISR, else as it is."""
    if not in_progress(partition):
        return partition
    replicas = _without(partition.replicas, partition.removing)
    isr = _without(partition.isr, partition.removing)
    if not isr or not replicas or not set(replicas) <= set(isr):
        return partition
    return replace(partition, replicas=replicas, isr=isr, adding=(), removing=())


def reverted(partition: PartitionRegistration) -> tuple[PartitionRegistration, bool]:
    """Undo the reassignment; return the partition, and True if that is unclean.

    It is unclean if the ISR would be empty: the first replica then becomes the ISR, with the
    records that it has.
    """
    replicas = original_replicas(partition)
    isr = _without(partition.isr, partition.adding)
    wanted = replace(partition, replicas=replicas, isr=isr or replicas[:1], adding=(), removing=())
    return wanted, not isr


def original_replicas(partition: PartitionRegistration) -> tuple[int, ...]:
    """Return the replicas before the reassignment in progress, which only adds. Never empty."""
    return _without(partition.replicas, partition.adding)


def target_size(partition: PartitionRegistration) -> int:
    """The replication factor: that of the target when a reassignment is in progress."""
    return len(_without(partition.replicas, partition.removing))


def _without(replicas: Sequence[int], gone: Sequence[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if replica not in gone)
