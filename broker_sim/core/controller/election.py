"""Leader and ISR of a partition after a change: Kafka's `PartitionChangeBuilder`.

Rules for this file: a function of the registration, of what is wanted of it and of which brokers
may lead; it neither knows nor changes the image. A leader that may go on leading does. The last
member of the ISR is never taken out: it has all that is committed, so without it and without an
unclean election the partition waits for it, with no leader.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace

from broker_sim.core.controller.reassignment import completed
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration


class Election(enum.Enum):
    """The replicas that may become the leader when a partition changes."""

    ONLINE = enum.auto()
    """The first replica that is in the ISR, when the leader cannot lead any more."""
    PREFERRED = enum.auto()
    """The first of all replicas, when it is in the ISR; else as ONLINE."""
    UNCLEAN = enum.auto()
    """The replica of ONLINE; without any, another replica, and records that it lacks are lost."""


def change_partition(
    before: PartitionRegistration,
    wanted: PartitionRegistration,
    may_lead: Callable[[int], bool],
    election: Election = Election.ONLINE,
) -> PartitionRegistration | None:
    """The partition with the wanted replicas and ISR, and a leader; None where nothing changes.

    `wanted` is `before` with other replicas, ISR, adding or removing. An empty ISR is one that
    nobody is left in. A reassignment that can be completed is.
    """
    wanted = completed(wanted)
    leader, unclean = _elect_leader(wanted, may_lead, election)
    after = before.changed(
        replicas=wanted.replicas,
        isr=(leader,) if unclean else wanted.isr or before.isr,
        leader=leader,
        adding=wanted.adding,
        removing=wanted.removing,
    )
    unchanged = replace(
        after, leader_epoch=before.leader_epoch, partition_epoch=before.partition_epoch
    )
    return None if unchanged == before else after


def _elect_leader(
    wanted: PartitionRegistration, may_lead: Callable[[int], bool], election: Election
) -> tuple[int, bool]:
    """The leader, and whether it is not of the ISR."""
    clean = [r for r in wanted.replicas if r in wanted.isr and may_lead(r)]
    if election is Election.PREFERRED and wanted.replicas[0] in clean:
        return wanted.replicas[0], False
    if wanted.leader in clean:
        return wanted.leader, False
    if clean:
        return clean[0], False
    if election is Election.UNCLEAN:
        for replica in filter(may_lead, wanted.replicas):
            return replica, True
    return NO_LEADER, False
