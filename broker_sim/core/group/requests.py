"""Requests to the group coordinator and its answers, as plain values.

Handlers make the first from messages and turn the second into messages. An empty member id is
Kafka's "unknown member"; a generation of -1 is "no group management".
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker_sim.core.group.consumer_records import Partitions
from broker_sim.core.group.log_records import ZERO_ID
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_LEADER_EPOCH
from txnlog_kafka.wire.topic_partition import TopicPartition

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1
INVALID_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """JoinGroup. `rebalance_timeout_ms` negative means the session timeout.

    `requires_known_member_id`: version 4 on. `supports_skipping_assignment`: version 9 on.
    `protocols` are (name, subscription bytes) in the member's order of preference.
    """

    group_id: str
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    protocol_type: str = "consumer"
    protocols: tuple[tuple[str, bytes], ...] = ()
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True

    @property
    def own_rebalance_timeout_ms(self) -> int:
        """The rebalance timeout; old clients have the session timeout only."""
        is_given = self.rebalance_timeout_ms >= 0
        return self.rebalance_timeout_ms if is_given else self.session_timeout_ms


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResult:
    """`members` is empty for all but the leader."""

    error: ErrorCode
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """SyncGroup; `assignments` by member id, from the leader only. Types None below version 5."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncGroupResult:
    """Answer to SyncGroup: the member's assignment."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """The member that is to leave: by member id, or by instance id alone (an administrator)."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroupResult:
    """Answer to LeaveGroup: a code for each member; `error` is the group's."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """The next offset to read of one partition. `metadata` None is stored as "".

    `topic_id` zero is "not known".
    """

    topic: str
    partition: int
    committed_offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = ""
    topic_id: uuid.UUID = ZERO_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """OffsetCommit. `knows_group_id_not_found`: version 9 on.

    `retention_time_ms` is -1 but in versions 2 - 4, where it may override the broker's.
    """

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    knows_group_id_not_found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommit:
    """TxnOffsetCommit, after the handler had the partition verified or added (KIP-890).

    `knows_group_id_not_found`: version 6 on.
    """

    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]
    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    knows_group_id_not_found: bool = False
    guard: int | None = None
    """Guard of the verification, for `PartitionLog.append_as_leader`."""


OffsetErrors = dict[TopicPartition, ErrorCode]
"""Error codes by partition of the request."""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """Committed offset of a partition; -1 with NONE is "nothing committed"."""

    topic: str
    partition: int
    committed_offset: int = INVALID_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class OffsetFetchResult:
    """Answer to OffsetFetch: the offsets of a group."""

    error: ErrorCode
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetDeleteResult:
    """`error` is the group's; then `partitions` is empty."""

    error: ErrorCode
    partitions: OffsetErrors = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """Row of ListGroups. `group_type` is "classic" or "consumer"."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Answer to ListGroups."""

    error: ErrorCode
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member in DescribeGroups; metadata is empty unless the group is Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Answer to DescribeGroups for a group. `protocol_data` is the chosen assignor."""

    error: ErrorCode
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
    message: str = ""
    """Text of the error GROUP_ID_NOT_FOUND."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. A field that is None (or -1) did not change since the last one.

    `member_epoch`: 0 joins, -1 leaves, -2 is a static member that will be back.
    `requires_member_id`: version 1 on. `may_read` tells if the client may describe a topic.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    may_read: Callable[[str], bool] = lambda _topic: True

    @property
    def is_full(self) -> bool:
        """True if the member gives all that it has, as after an error."""
        has_topics = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and has_topics and self.owned is not None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResult:
    """Answer to ConsumerGroupHeartbeat; `assignment` None is "as before"."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


NewUuid = Callable[[], str]
"""A fresh random UUID as text, from the injected randomness; part of member ids."""
JoinReply = Reply[JoinGroupResult]
LeaveReply = Reply[LeaveGroupResult]
ConsumerReply = Reply[ConsumerHeartbeatResult]
SyncReply = Reply[SyncGroupResult]
