"""Commands `groups list | describe | delete | delete-offsets | reset-offsets`:
kafka-consumer-groups."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from broker_sim.cli import group_offsets
from broker_sim.cli.arguments import UsageError, add_command, one_of, resolve_partitions
from broker_sim.cli.cluster import Cluster, Refused, refusal
from broker_sim.cli.group_description import DEAD, assigned_partitions, described
from broker_sim.cli.printing import Output, Table
from txnlog_kafka.operations import admin
from txnlog_kafka.operations.admin import GroupListing
from txnlog_kafka.operations.calls import (
    GROUP,
    CoordinatorRequest,
    call_coordinator,
    top_level_code,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
)
"""States of groups of every type (Kafka's `GroupState`)."""

_PROGRESS_GROUP = re.compile(r"\.progress(\.|$)")
"""Pattern of the groups that the connector keeps progress in; no consumer uses them."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options of all group commands."""
    parser = commands.add_parser("groups", help="consumer groups, their offsets and lag")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = add_command(actions, "list", list_groups, "list the ids of all groups")
    listing.add_argument(
        "--state", action="append", type=one_of(STATES), help="only this state; may be repeated"
    )
    listing.add_argument(
        "--exclude-internal",
        action="store_true",
        help="leave out the groups in which queries keep progress (GROUP.progress.QUERY)",
    )
    describing = add_command(
        actions, "describe", describe_groups, "show offsets and lag of a group"
    )
    _choose_groups(describing)
    shown = describing.add_mutually_exclusive_group()
    shown.add_argument("--offsets", action="store_true", help="show offsets and lag (the default)")
    shown.add_argument("--members", action="store_true", help="show members and their partitions")
    shown.add_argument("--state", action="store_true", help="show state and coordinator")
    deleting = add_command(actions, "delete", delete_groups, "delete groups with their offsets")
    _choose_groups(deleting)
    forgetting = add_command(
        actions, "delete-offsets", delete_offsets, "delete a group's offsets of topics"
    )
    forgetting.add_argument("--group", required=True)
    forgetting.add_argument(
        "--topic", required=True, action="append", help="TOPIC or TOPIC:0,1; may be repeated"
    )
    resetting = add_command(actions, "reset-offsets", group_offsets.reset, "set a group's offsets")
    group_offsets.add_options(resetting)


def _choose_groups(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--group", action="append", help="group id; may be repeated")
    chosen.add_argument("--all-groups", action="store_true", help="all groups of the cluster")


def list_groups(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return one row a group."""
    rows = [
        [each.group_id, each.state, each.protocol_type]
        for each in _listed(cluster, arguments.state or ())
        if not (arguments.exclude_internal and _PROGRESS_GROUP.search(each.group_id))
    ]
    return Output([Table("groups", ["GROUP", "STATE", "PROTOCOL-TYPE"], rows)])


def _listed(cluster: Cluster, states: Sequence[str] = ()) -> tuple[GroupListing, ...]:
    return cluster.run(admin.list_groups(cluster.client.session, states), "listing groups")


def _wanted(cluster: Cluster, arguments: argparse.Namespace) -> list[str]:
    if arguments.all_groups:
        return [each.group_id for each in _listed(cluster)]
    return list(dict.fromkeys(arguments.group))


def describe_groups(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return offsets and lag, members or state of each group; unknown groups are refusals."""
    rows: list[list[Any]] = []
    output = Output()
    for group in _wanted(cluster, arguments):
        found = described(cluster, group)
        offsets = group_offsets.committed(cluster, group)
        if found.group_state == DEAD and not offsets:
            doing = f"describing group {group!r}"
            output.refusals.append(refusal(doing, ErrorCode.GROUP_ID_NOT_FOUND))
        elif arguments.members:
            rows += _member_rows(found)
        elif arguments.state:
            rows.append([group, found.group_state, found.protocol_data, len(found.members)])
        else:
            rows += _offset_rows(cluster, found, offsets)
    headings = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    headings += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
    if arguments.members:
        headings = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "PARTITIONS"]
    elif arguments.state:
        headings = ["GROUP", "STATE", "ASSIGNMENT-STRATEGY", "MEMBERS"]
    output.tables.append(Table("groups", headings, rows))
    return output


def _member_rows(found: Message) -> list[list[Any]]:
    return [
        [
            found.group_id,
            member.member_id,
            member.group_instance_id,
            member.client_host,
            member.client_id,
            [f"{topic}-{number}" for topic, number in assigned_partitions(member)],
        ]
        for member in found.members
    ]


def _offset_rows(
    cluster: Cluster, found: Message, offsets: dict[TopicPartition, int]
) -> list[list[Any]]:
    """Return rows of committed partitions, and of partitions that a member has without a commit
    yet."""
    owners = {p: member for member in found.members for p in assigned_partitions(member)}
    partitions = sorted({*offsets, *owners})
    ends = group_offsets.ends(cluster, partitions)
    rows = []
    for partition in partitions:
        current, end = offsets.get(partition), ends.get(partition)
        lag = None if current is None or end is None else max(0, end - current)
        row = [found.group_id, *partition, current, end, lag]
        owner = owners.get(partition)
        if owner is None:
            row += [None, None, None]
        else:
            row += [owner.member_id, owner.client_host, owner.client_id]
        rows.append(row)
    return rows


def delete_groups(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Delete each group on its own; a group that cannot be deleted is a refusal."""
    output = Output()
    rows = []
    for group in _wanted(cluster, arguments):
        operation = admin.delete_group(cluster.client.session, group)
        try:
            cluster.run(operation, f"deleting group {group!r}")
        except Refused as error:
            output.refusals.append(str(error))
        else:
            rows.append([group, "deleted"])
    output.tables.append(Table("groups", ["GROUP", "DONE"], rows))
    return output


def delete_offsets(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Delete the committed offsets of some partitions."""
    group = arguments.group
    partitions = resolve_partitions(cluster, "--topic", arguments.topic)
    if not partitions:
        raise UsageError("--topic names no partition")
    cls = APIS[ApiKey.OFFSET_DELETE].request
    topic_class = cls.OffsetDeleteRequestTopic
    by_topic: dict[str, list[Any]] = {}
    for topic, number in partitions:
        place = topic_class.OffsetDeleteRequestPartition(partition_index=number)
        by_topic.setdefault(topic, []).append(place)
    message = cls(
        group_id=group,
        topics=[topic_class(name=name, partitions=places) for name, places in by_topic.items()],
    )
    doing = f"deleting offsets of group {group!r}"
    request = CoordinatorRequest(GROUP, group, message, doing, top_level_code)
    answer = cluster.run(call_coordinator(cluster.client.session, request), doing)
    output = Output()
    rows = []
    for found in answer.message.topics:
        for place in found.partitions:
            if place.error_code:
                what = f"{doing} of {found.name}-{place.partition_index}"
                output.refusals.append(refusal(what, place.error_code))
            else:
                rows.append([group, found.name, place.partition_index, "deleted"])
    output.tables.append(Table("groups", ["GROUP", "TOPIC", "PARTITION", "DONE"], sorted(rows)))
    return output
