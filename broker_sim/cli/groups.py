"""`groups list | describe | delete | delete-offsets | reset-offsets`: kafka-consumer-groups."""

from __future__ import annotations

import argparse
import re
from typing import Any

from broker_sim.cli import group_offsets
from broker_sim.cli.arguments import UsageError, add_command, one_of, resolve_partitions
from broker_sim.cli.cluster import Cluster, check_code, refusal
from broker_sim.cli.group_description import DEAD, assigned_partitions, described
from broker_sim.cli.printing import Output, Table
from txnlog_kafka.operations.calls import GROUP
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
"""Of groups of every type (Kafka's `GroupState`)."""

_PROGRESS_GROUP = re.compile(r"\.progress(\.|$)")
"""How the connector names the groups that hold progress alone, and that nobody consumes with."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of all group commands."""
    parser = commands.add_parser("groups", help="consumer groups, their offsets and lag")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = add_command(actions, "list", list_groups, "list the ids of all groups")
    listing.add_argument(
        "--state", action="append", type=one_of(STATES), help="only these; may be repeated"
    )
    listing.add_argument(
        "--exclude-internal",
        action="store_true",
        help="leave out the groups that queries keep their progress in (GROUP.progress.QUERY)",
    )
    describing = add_command(
        actions, "describe", describe_groups, "show offsets and lag of a group"
    )
    _choose_groups(describing)
    shown = describing.add_mutually_exclusive_group()
    shown.add_argument("--offsets", action="store_true", help="offsets and lag (the default)")
    shown.add_argument("--members", action="store_true", help="members and their partitions")
    shown.add_argument("--state", action="store_true", help="state and coordinator")
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
    chosen.add_argument("--group", action="append", help="may be repeated")
    chosen.add_argument("--all-groups", action="store_true")


def list_groups(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """One row a group."""
    listed = _listed(cluster, arguments.state or [])
    if arguments.exclude_internal:
        listed = [each for each in listed if not _PROGRESS_GROUP.search(each.group_id)]
    rows = [[each.group_id, each.group_state, each.protocol_type] for each in listed]
    return Output([Table("groups", ["GROUP", "STATE", "PROTOCOL-TYPE"], sorted(rows))])


def _listed(cluster: Cluster, states: list[str]) -> list[Message]:
    cls = APIS[ApiKey.LIST_GROUPS].request
    found = []
    for answer in cluster.ask_all(cls(states_filter=states, types_filter=[]), "listing groups"):
        check_code("listing groups", answer.error_code)
        found += answer.groups
    return found


def _wanted(cluster: Cluster, arguments: argparse.Namespace) -> list[str]:
    if arguments.all_groups:
        return sorted({each.group_id for each in _listed(cluster, [])})
    return list(dict.fromkeys(arguments.group))


def describe_groups(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Offsets and lag, members or state of each group; unknown groups are refusals."""
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
    """Committed partitions, and those that a member has without a commit yet."""
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
    """Each group on its own; those that cannot be deleted are refusals."""
    cls = APIS[ApiKey.DELETE_GROUPS].request
    output = Output()
    rows = []
    for group in _wanted(cluster, arguments):
        doing = f"deleting group {group!r}"
        answer = cluster.ask_coordinator(
            cls(groups_names=[group]),
            doing,
            key_type=GROUP,
            key=group,
            codes=lambda reply: [each.error_code for each in reply.results],
        )
        (result,) = answer.results
        if result.error_code:
            output.refusals.append(refusal(doing, result.error_code))
        else:
            rows.append([group, "deleted"])
    output.tables.append(Table("groups", ["GROUP", "DONE"], rows))
    return output


def delete_offsets(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Forget the committed offsets of some partitions."""
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
    answer = cluster.ask_coordinator(
        message, doing, key_type=GROUP, key=group, codes=lambda reply: [reply.error_code]
    )
    check_code(doing, answer.error_code)
    output = Output()
    rows = []
    for found in answer.topics:
        for place in found.partitions:
            if place.error_code:
                what = f"{doing} of {found.name}-{place.partition_index}"
                output.refusals.append(refusal(what, place.error_code))
            else:
                rows.append([group, found.name, place.partition_index, "deleted"])
    output.tables.append(Table("groups", ["GROUP", "TOPIC", "PARTITION", "DONE"], sorted(rows)))
    return output
