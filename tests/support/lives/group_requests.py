"""Group requests for a `group_pair`: member ids by the order in which they were given out."""

from __future__ import annotations

import struct
import uuid
from typing import Any

from support.core.broker_build import request
from support.core.broker_build import struct as build
from support.lives.group_pair import Names

from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

K = ApiKey


def consumer_subscription(*topics: str) -> bytes:
    """What a consumer sends with JoinGroup, version 0."""
    data = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        data += struct.pack(">h", len(topic)) + topic.encode()
    return data + struct.pack(">i", -1)


def join_request(group: str, names: Names, **fields: Any) -> Any:
    """JoinGroup; `member` is an index of a member id, `protocols` are (name, metadata)."""
    protocols = fields.pop("protocols")
    member = fields.pop("member")
    message = request(
        K.JOIN_GROUP,
        **{
            "group_id": group,
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": names.member(member),
            "protocol_type": "consumer",
        }
        | fields,
    )
    message.protocols = [
        build(message, "JoinGroupRequestProtocol", name=name, metadata=metadata)
        for name, metadata in protocols
    ]
    return message


def sync_request(group: str, names: Names, **fields: Any) -> Any:
    """SyncGroup; `assignments` by index of the member id."""
    assignments = fields.pop("assignments")
    message = request(
        K.SYNC_GROUP, group_id=group, member_id=names.member(fields.pop("member")), **fields
    )
    message.assignments = [
        build(
            message,
            "SyncGroupRequestAssignment",
            member_id=names.member(member),
            assignment=assignment,
        )
        for member, assignment in assignments.items()
    ]
    return message


def leave_request(group: str, names: Names, leaving: list[tuple[int | None, str | None]]) -> Any:
    """LeaveGroup of these (member, instance id); versions below 3 take the first member."""
    message = request(K.LEAVE_GROUP, group_id=group, member_id=names.member(leaving[0][0]))
    message.members = [
        build(
            message,
            "MemberIdentity",
            member_id=names.member(member),
            group_instance_id=instance,
        )
        for member, instance in leaving
    ]
    return message


def commit_request(
    group: str, names: Names, version: int, offsets: dict[tuple[str, int], int], **fields: Any
) -> Any:
    """OffsetCommit; `member` is an index. Topics by id from version 10 on."""
    metadata = fields.pop("metadata", "")
    message = request(
        K.OFFSET_COMMIT,
        group_id=group,
        member_id=names.member(fields.pop("member", None)),
        **fields,
    )
    message.topics = [
        build(
            message,
            "OffsetCommitRequestTopic",
            **_topic(names, topic, by_id=version >= 10),
            partitions=[
                build(
                    message,
                    "OffsetCommitRequestPartition",
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=0,
                    committed_metadata=metadata,
                )
                for partition, offset in places
            ],
        )
        for topic, places in _by_topic(offsets)
    ]
    return message


def txn_commit_request(
    group: str, names: Names, offsets: dict[tuple[str, int], int], **fields: Any
) -> Any:
    """TxnOffsetCommit; `member` is an index."""
    message = request(
        K.TXN_OFFSET_COMMIT,
        group_id=group,
        member_id=names.member(fields.pop("member", None)),
        **fields,
    )
    message.topics = [
        build(
            message,
            "TxnOffsetCommitRequestTopic",
            name=topic,
            partitions=[
                build(
                    message,
                    "TxnOffsetCommitRequestPartition",
                    partition_index=partition,
                    committed_offset=offset,
                    committed_metadata="",
                )
                for partition, offset in places
            ],
        )
        for topic, places in _by_topic(offsets)
    ]
    return message


def fetch_request(
    group: str, names: Names, version: int, topics: list[str] | None, *, stable: bool
) -> Any:
    """OffsetFetch of partitions 0 and 1 of the topics, None for all; several groups from 8 on."""
    message = request(K.OFFSET_FETCH, group_id=group, require_stable=stable)
    if version < 8:
        message.topics = topics and [
            build(message, "OffsetFetchRequestTopic", name=topic, partition_indexes=[0, 1])
            for topic in topics
        ]
        return message
    asked = topics and [
        build(
            message,
            "OffsetFetchRequestTopics",
            **_topic(names, topic, by_id=version >= 10),
            partition_indexes=[0, 1],
        )
        for topic in topics
    ]
    message.groups = [
        build(message, "OffsetFetchRequestGroup", group_id=each, topics=asked)
        for each in (group, group + "-other")
    ]
    return message


def delete_request(group: str, topics: list[str]) -> Any:
    """OffsetDelete of partitions 0 and 7."""
    message = request(K.OFFSET_DELETE, group_id=group)
    message.topics = [
        build(
            message,
            "OffsetDeleteRequestTopic",
            name=topic,
            partitions=[
                build(message, "OffsetDeleteRequestPartition", partition_index=index)
                for index in (0, 7)
            ],
        )
        for topic in topics
    ]
    return message


def _by_topic(
    offsets: dict[tuple[str, int], int],
) -> list[tuple[str, list[tuple[int, int]]]]:
    """(topic, [(partition, offset)]), sorted."""
    topics = sorted({topic for topic, _ in offsets})
    return [(t, [(p, o) for (name, p), o in offsets.items() if name == t]) for t in topics]


def _topic(names: Names, topic: str, *, by_id: bool) -> dict[str, Any]:
    if by_id:
        return {"topic_id": names.topics.get(topic, uuid.UUID(int=77))}
    return {"name": topic}


def index_of(name: str) -> int:
    """The number in a plain member id."""
    return int(name.removeprefix("<member ").removesuffix(">"))


def codes(answer: Any) -> list[int]:
    """All error codes in a plain answer."""
    if isinstance(answer, list):
        return [code for each in answer for code in codes(each)]
    if not isinstance(answer, dict):
        return []
    own = [answer["error_code"]] if "error_code" in answer else []
    return own + [code for each in answer.values() for code in codes(each)]


def code_while_it_prepares(answer: Any) -> int:
    """CONCURRENT_TRANSACTIONS while the decided transaction is not complete."""
    state = answer.transaction_states[0].transaction_state
    prepares = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    busy = int(ErrorCode.CONCURRENT_TRANSACTIONS)
    return busy if state in {each.label for each in prepares} else 0
