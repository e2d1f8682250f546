"""Group requests for a `group_pair`: member ids by the order in which they were given out."""

from __future__ import annotations

import uuid
from typing import Any

from support.core.broker_build import request
from support.histories.group_pair import Names

from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

K = ApiKey


def join_request(group: str, names: Names, **fields: Any) -> Any:
    """JoinGroup; `member` is an index of a member id, `protocols` are (name, metadata)."""
    protocols, member = fields.pop("protocols"), fields.pop("member")
    given = {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": names.member(member),
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
    }
    return request(K.JOIN_GROUP, **given | fields)


def sync_request(group: str, names: Names, **fields: Any) -> Any:
    """SyncGroup; `assignments` by index of the member id."""
    assignments, member_id = fields.pop("assignments"), names.member(fields.pop("member"))
    given = [
        {"member_id": names.member(member), "assignment": assignment}
        for member, assignment in assignments.items()
    ]
    return request(K.SYNC_GROUP, group_id=group, member_id=member_id, assignments=given, **fields)


def leave_request(group: str, names: Names, leaving: list[tuple[int | None, str | None]]) -> Any:
    """LeaveGroup of these (member, instance id); versions below 3 take the first member."""
    members = [
        {"member_id": names.member(member), "group_instance_id": instance}
        for member, instance in leaving
    ]
    first = members[0]["member_id"]
    return request(K.LEAVE_GROUP, group_id=group, member_id=first, members=members)


def commit_request(
    group: str, names: Names, version: int, offsets: dict[tuple[str, int], int], **fields: Any
) -> Any:
    """OffsetCommit; `member` is an index. Topics by id from version 10 on."""
    metadata, member_id = fields.pop("metadata", ""), names.member(fields.pop("member", None))
    topics = [
        _topic(names, topic, by_id=version >= 10) | {"partitions": _places(places, metadata)}
        for topic, places in _by_topic(offsets)
    ]
    return request(K.OFFSET_COMMIT, group_id=group, member_id=member_id, topics=topics, **fields)


def txn_commit_request(
    group: str, names: Names, version: int, offsets: dict[tuple[str, int], int], **fields: Any
) -> Any:
    """TxnOffsetCommit; `member` is an index. Topics by id from version 6 on."""
    member_id = names.member(fields.pop("member", None))
    topics = [
        _topic(names, topic, by_id=version >= 6) | {"partitions": _places(places, "", -1)}
        for topic, places in _by_topic(offsets)
    ]
    return request(
        K.TXN_OFFSET_COMMIT, group_id=group, member_id=member_id, topics=topics, **fields
    )


def _places(places: list[tuple[int, int]], metadata: str, leader_epoch: int = 0) -> list[dict]:
    return [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": leader_epoch,
            "committed_metadata": metadata,
        }
        for partition, offset in places
    ]


def fetch_request(
    group: str, names: Names, version: int, topics: list[str] | None, *, stable: bool
) -> Any:
    """OffsetFetch of partitions 0 and 1 of the topics, None for all; several groups from 8 on."""
    asked = topics and [
        _topic(names, topic, by_id=version >= 10) | {"partition_indexes": [0, 1]}
        for topic in topics
    ]
    groups = [{"group_id": each, "topics": asked} for each in (group, group + "-other")]
    return request(
        K.OFFSET_FETCH, group_id=group, require_stable=stable,
        **{"topics": asked} if version < 8 else {"groups": groups},
    )  # fmt: skip


def delete_request(group: str, topics: list[str]) -> Any:
    """OffsetDelete of partitions 0 and 7."""
    places = [{"partition_index": index} for index in (0, 7)]
    named = [{"name": topic, "partitions": places} for topic in topics]
    return request(K.OFFSET_DELETE, group_id=group, topics=named)


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
    return int(name.removeprefix("<member ").removesuffix(">"))


def code_while_it_prepares(answer: Any) -> int:
    """CONCURRENT_TRANSACTIONS while the decided transaction is not complete."""
    state = answer.transaction_states[0].transaction_state
    prepares = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    busy = int(ErrorCode.CONCURRENT_TRANSACTIONS)
    return busy if state in {each.label for each in prepares} else 0
