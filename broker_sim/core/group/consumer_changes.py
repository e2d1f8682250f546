"""Changes of a consumer group: one heartbeat, one removal, one resolution of regular expressions.

Rules for this file: no log, timer or clock. Each function adds records to a `GroupChange`, whose
group they change at once, and the caller appends the records. Checks and steps come in Kafka's
order. Source: Kafka's `GroupMetadataManager`, the consumer part, and `TargetAssignmentBuilder`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from broker_sim.core.config import INT32_MAX
from broker_sim.core.controller.image import Topic
from broker_sim.core.coordinator.patterns import compiled
from broker_sim.core.group.assignors import ASSIGNORS, MemberSpec
from broker_sim.core.group.classic_group import ClassicGroup, java_map_order
from broker_sim.core.group.consumer_group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    metadata_hash,
    topic_digest,
)
from broker_sim.core.group.consumer_records import (
    ConsumerGroupRecord,
    EpochPartitions,
    GroupEpoch,
    MemberState,
    Partitions,
    RecordKind,
    RecordValue,
    ResolvedRegex,
    Subscription,
    Target,
    TargetEpoch,
)
from broker_sim.core.group.reconciliation import Goal, is_reconciled, reconcile
from broker_sim.core.group.requests import ConsumerHeartbeat
from txnlog_kafka.wire.error_codes import ErrorCode

Topics = Mapping[str, Topic]
"""Topics that exist, by name."""

_K = RecordKind
_E = ErrorCode


class GroupChange:
    """A copy of the group that changes with each record, and the records."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group.copy()
        self.records: list[ConsumerGroupRecord] = []
        self.classic: ClassicGroup | None = None
        """Classic group that takes the place of the group."""
        self.rebalances = False
        """True if the classic group begins with a rebalance."""

    def add(self, kind: RecordKind, name: str, value: RecordValue | None) -> None:
        """Add a record. `name` is a member id, a regular expression, or empty."""
        record = ConsumerGroupRecord(kind, self.group.group_id, name, value)
        self.group.apply(record)
        self.records.append(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the group, and what is known besides it, as of now."""

    topics: Topics
    now_ms: int
    assignors: tuple[str, ...] = ("uniform", "range")
    max_size: int = INT32_MAX
    classic_max_size: int = INT32_MAX
    migration: str = "bidirectional"
    assignment_interval_ms: int = 0
    digest: Callable[[Topic], bytes] = lambda topic: topic_digest(topic, {})
    """Digest of a topic, for the metadata hash."""


def refuse_request(request: ConsumerHeartbeat, assignors: Iterable[str]) -> tuple[ErrorCode, str]:
    """Return the error of a heartbeat that contradicts itself, with its text; else NONE."""
    epoch, text = request.member_epoch, ""
    if not request.member_id and (request.requires_member_id or epoch > 0 or epoch == -1):
        text = "MemberId can't be empty."
    elif not request.group_id:
        text = "GroupId can't be empty."
    elif request.instance_id == "":
        text = "InstanceId can't be empty."
    elif request.rack_id == "":
        text = "RackId can't be empty."
    elif epoch == JOIN_EPOCH:
        text = _refuse_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        text = "InstanceId can't be null."
    elif epoch < STATIC_LEAVE_EPOCH:
        text = "MemberEpoch is invalid."
    if text:
        return _E.INVALID_REQUEST, text
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        return _E.UNSUPPORTED_ASSIGNOR, (
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{known}."
        )
    return _E.NONE, ""


def _refuse_join(request: ConsumerHeartbeat) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if request.topic_names is None and request.topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining."
    return ""


# -------------------------------------------------------------------------------- heartbeat


def beat(
    change: GroupChange, request: ConsumerHeartbeat, settings: Settings
) -> ConsumerMember | ErrorCode:
    """A member joins or lives: return it as it is now, or the error that refuses it."""
    if is_full(change.group, request.member_id, request.instance_id, settings):
        return _E.GROUP_MAX_SIZE_REACHED
    member = _member(change, request)
    if isinstance(member, ErrorCode):
        return member
    subscription = _subscription(member.subscription, request)
    return advance(change, member, subscription, request.owned, settings)


def is_full(
    group: ConsumerGroup, member_id: str, instance_id: str | None, settings: Settings
) -> bool:
    """True if the group is too large for the member, which neither is in it nor comes back."""
    if member_id in group.members or instance_id in group.static_members:
        return False
    return len(group.members) >= settings.max_size


def advance(
    change: GroupChange,
    member: ConsumerMember,
    subscription: Subscription,
    owned: Partitions | None,
    settings: Settings,
) -> ConsumerMember | ErrorCode:
    """Give the member its new subscription, the group a new assignment if that is due, and the
    member as much of the assignment as is free."""
    changed = subscribe(change, member, subscription, settings)
    if isinstance(changed, ErrorCode):
        return changed
    _update_target(change, settings)
    return give(change, member.member_id, owned, settings, subscription_changed=changed)


def subscribe(
    change: GroupChange, member: ConsumerMember, subscription: Subscription, settings: Settings
) -> bool | ErrorCode:
    """Store the subscription, and begin a new epoch if that is due. Return True if the member reads
    other topics than before, or the error that refuses it."""
    group, known = change.group, member.subscription
    preferred = preferred_assignor(group, settings.assignors)
    regex = subscription.topic_regex
    regex_changed = regex != known.topic_regex
    if regex_changed and regex and regex not in group.regex_counts() and compiled(regex) is None:
        return _E.INVALID_REGULAR_EXPRESSION
    if subscription != known or member.member_id not in group.members:
        change.add(_K.MEMBER, member.member_id, subscription)
    names_changed = subscription.topic_names != known.topic_names
    bumps = names_changed or preferred_assignor(group, settings.assignors) != preferred
    if regex_changed:
        _forget_regexes(change, [known.topic_regex])
        bumps = bumps or not regex or regex in group.regexes
    if bumps or not regex_changed:
        # A new expression has no topics yet: the epoch is bumped when it is resolved.
        _bump_epoch(change, settings, is_needed=bumps)
    return names_changed or regex_changed


def _member(change: GroupChange, request: ConsumerHeartbeat) -> ConsumerMember | ErrorCode:
    """The member of the heartbeat, which may be new, or the error that refuses it."""
    group, joins = change.group, request.member_epoch == JOIN_EPOCH
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            return ConsumerMember(request.member_id) if joins else _E.UNKNOWN_MEMBER_ID
        return _refuse_epoch(member, request) or member
    existing = group.static_member(request.instance_id)
    if joins:
        if existing is None:
            return group.members.get(request.member_id) or ConsumerMember(request.member_id)
        is_away = existing.current.epoch == STATIC_LEAVE_EPOCH
        if not is_away and not existing.is_classic:
            return _E.UNRELEASED_INSTANCE_ID
        return replace_static(change, existing, request.member_id)
    return (
        refuse_static(existing, request.member_id) or _refuse_epoch(existing, request) or existing
        if existing is not None
        else _E.UNKNOWN_MEMBER_ID
    )


def refuse_static(member: ConsumerMember | None, member_id: str) -> ErrorCode | None:
    """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (another process has the instance id), or None."""
    if member is None:
        return _E.UNKNOWN_MEMBER_ID
    return None if member.member_id == member_id else _E.FENCED_INSTANCE_ID


def _refuse_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> ErrorCode | None:
    """FENCED_MEMBER_EPOCH, or None. A member that joins again passes.

    The epoch before passes if the member owns nothing else than its assignment: the answer with the
    new epoch may have been lost.
    """
    epoch, current = request.member_epoch, member.current
    if epoch in (JOIN_EPOCH, current.epoch):
        is_fenced = False
    elif epoch > current.epoch or epoch != current.previous_epoch:
        is_fenced = True
    else:
        is_fenced = not _is_within(request.owned, current.assigned)
    if current.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        is_fenced = True
    return _E.FENCED_MEMBER_EPOCH if is_fenced else None


def _is_within(owned: Partitions | None, assigned: EpochPartitions) -> bool:
    if owned is None:
        return False
    return all(
        topic_id in assigned and owned[topic_id] <= assigned[topic_id].keys() for topic_id in owned
    )


def replace_static(change: GroupChange, existing: ConsumerMember, member_id: str) -> ConsumerMember:
    """The instance came back under a new member id: the new member takes the assignment over."""
    target = change.group.targets.get(existing.member_id, {})
    _remove(change, existing.member_id)
    current = replace(existing.current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    change.add(_K.MEMBER, member_id, existing.subscription)
    change.add(_K.TARGET, member_id, Target(target))
    change.add(_K.CURRENT, member_id, current)
    return change.group.members[member_id]


def _subscription(known: Subscription, request: ConsumerHeartbeat) -> Subscription:
    """The subscription with what the heartbeat changes."""
    timeout_ms = request.rebalance_timeout_ms
    return Subscription(
        known.instance_id if request.instance_id is None else request.instance_id,
        known.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        known.topic_names if request.topic_names is None else request.topic_names,
        known.topic_regex if request.topic_regex is None else request.topic_regex,
        known.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        known.server_assignor if request.server_assignor is None else request.server_assignor,
    )


def _bump_epoch(change: GroupChange, settings: Settings, *, is_needed: bool) -> None:
    """Begin a new group epoch if it is needed, or if the topics that the group reads changed."""
    group = change.group
    found = topics_hash(group, settings)
    if is_needed or found != group.metadata_hash:
        change.add(_K.GROUP_EPOCH, "", GroupEpoch(group.epoch + 1, found))


def topics_hash(group: ConsumerGroup, settings: Settings) -> int:
    """The metadata hash of the topics that the group reads."""
    topics = settings.topics
    names = [name for name in group.subscribed_topics() if name in topics]
    return metadata_hash({name: settings.digest(topics[name]) for name in names})


def _known(topics: Topics, names: Iterable[str]) -> dict[str, tuple[uuid.UUID, int]]:
    return {
        name: (topics[name].topic_id, topics[name].partition_count)
        for name in names
        if name in topics
    }


def _update_target(change: GroupChange, settings: Settings) -> None:
    """Run the assignor if the group epoch is ahead, not more often than the interval allows."""
    group, interval_ms = change.group, settings.assignment_interval_ms
    if group.target_epoch >= group.epoch:
        return
    if group.target_ms and interval_ms and settings.now_ms < group.target_ms + interval_ms:
        return
    known = _known(settings.topics, group.subscribed_topics())
    ids = {name: topic_id for name, (topic_id, _) in known.items()}
    specs = {
        member_id: MemberSpec(
            member.subscription.instance_id,
            frozenset(ids[topic] for topic in group.topics_of(member.subscription) if topic in ids),
            group.targets.get(member_id, {}),
        )
        for member_id, member in group.members.items()
    }
    assignor = ASSIGNORS[preferred_assignor(group, settings.assignors)]
    targets = assignor(specs, dict(known.values()))
    for member_id in sorted(specs):
        target = targets.get(member_id, {})
        if member_id not in group.targets or group.targets[member_id] != target:
            change.add(_K.TARGET, member_id, Target(target))
    change.add(_K.TARGET_EPOCH, "", TargetEpoch(group.epoch, settings.now_ms))


def preferred_assignor(group: ConsumerGroup, assignors: tuple[str, ...]) -> str:
    """The assignor that most members ask for; of equals the first of a Java hash map."""
    votes: dict[str, int] = {}
    for member in group.members.values():
        name = member.subscription.server_assignor
        if name in assignors:
            votes[name] = votes.get(name, 0) + 1
    if not votes:
        return assignors[0]
    return min(votes, key=lambda name: (-votes[name], java_map_order(name, len(votes))))


def give(
    change: GroupChange,
    member_id: str,
    owned: Partitions | None,
    settings: Settings,
    *,
    subscription_changed: bool,
) -> ConsumerMember:
    """Take the member a step toward its target; return the member as it is then."""
    group = change.group
    member = group.members[member_id]
    if is_reconciled(member.current, group.target_epoch) and not subscription_changed:
        return member
    known = _known(settings.topics, group.topics_of(member.subscription))
    goal = Goal(
        group.target_epoch,
        group.targets.get(member_id, {}),
        group.is_free,
        owned,
        {topic_id for topic_id, _ in known.values()},
        subscription_changed,
    )
    current = reconcile(member.current, goal)
    if current != member.current:
        change.add(_K.CURRENT, member_id, current)
    return group.members[member_id]


# -------------------------------------------------------------------------------- removal


def leaving_member(group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember | ErrorCode:
    """The member that leaves, or the error that refuses it."""
    if request.instance_id is None:
        return group.members.get(request.member_id) or _E.UNKNOWN_MEMBER_ID
    member = group.static_member(request.instance_id)
    return refuse_static(member, request.member_id) or member or _E.UNKNOWN_MEMBER_ID


def set_away(change: GroupChange, member: ConsumerMember) -> None:
    """A static member leaves for a while. Its partitions count as assigned from the beginning, so
    that it may commit for them under its next member id."""
    assigned = {
        topic_id: dict.fromkeys(partitions, 0)
        for topic_id, partitions in member.current.assigned.items()
    }
    away = replace(
        member.current, epoch=STATIC_LEAVE_EPOCH, assigned=assigned, pending_revocation={}
    )
    change.add(_K.CURRENT, member.member_id, away)


def fence(change: GroupChange, member_ids: Collection[str], settings: Settings) -> None:
    """Remove members; the others share their partitions at their next heartbeats."""
    group = change.group
    regexes = [group.members[each].subscription.topic_regex for each in member_ids]
    for member_id in member_ids:
        _remove(change, member_id)
    _forget_regexes(change, regexes)
    _bump_epoch(change, settings, is_needed=True)
    if group.is_empty:
        # The next member need not wait for the interval between two assignments.
        change.add(_K.TARGET_EPOCH, "", TargetEpoch(group.epoch))


def _remove(change: GroupChange, member_id: str) -> None:
    for kind in (_K.CURRENT, _K.TARGET, _K.MEMBER):
        change.add(kind, member_id, None)


# -------------------------------------------------------------------------------- regexes


def _forget_regexes(change: GroupChange, regexes: Iterable[str]) -> None:
    """Delete resolved expressions that no member has any more."""
    counts = change.group.regex_counts()
    for regex in sorted({*regexes}):
        if regex in change.group.regexes and regex not in counts:
            change.add(_K.REGEX, regex, None)


def matching(regexes: Iterable[str], names: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the names that each expression matches as a whole; an invalid one matches none."""
    patterns = {regex: compiled(regex) for regex in regexes}
    return {
        regex: frozenset(name for name in names if pattern is not None and pattern.fullmatch(name))
        for regex, pattern in patterns.items()
    }


def resolve(change: GroupChange, found: Mapping[str, frozenset[str]], settings: Settings) -> None:
    """Store the topics that matched the group's regular expressions."""
    group, bumps = change.group, False
    counts = group.regex_counts()
    for regex in sorted(found):
        if regex in counts:
            known = group.regexes.get(regex)
            bumps = bumps or (known.topics if known else frozenset()) != found[regex]
            change.add(_K.REGEX, regex, ResolvedRegex(found[regex], 0, settings.now_ms))
    _bump_epoch(change, settings, is_needed=bumps)
