"""Calls of the group coordinator in a `coordinators.World`."""

from __future__ import annotations

from support.core.coordinators import World

from broker_sim.core.group.requests import LeavingMember
from txnlog_kafka.wire.errors import ErrorCode


def state(world: World) -> str:
    return world.groups.describe_group("g").state


def heartbeat(world: World, member_id: str, generation_id: int, instance: str | None = None):
    return world.step(
        world.groups.heartbeat, "g", member_id=member_id, generation_id=generation_id,
        group_instance_id=instance,
    )  # fmt: skip


def leave(world: World, *members: LeavingMember) -> list[ErrorCode]:
    result = world.step(world.groups.leave_group, "g", members)
    assert result.error is ErrorCode.NONE
    return [error for _, error in result.members]
