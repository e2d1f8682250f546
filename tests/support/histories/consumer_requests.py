"""Requests of consumer groups (KIP-848) for a `group_pair`, with topics by name."""

from __future__ import annotations

import uuid
from typing import Any

from support.brokers.probe import pause
from support.core.broker_build import request
from support.histories.group_pair import ADMIN, RETRIES, Names, Pair
from support.histories.group_requests import consumer_subscription, join_request

from txnlog_kafka.wire.messages import ApiKey

K = ApiKey
Owned = dict[str, list[int]]
"""Partitions by the name of their topic."""
UNKNOWN_TOPIC = uuid.UUID(int=77)


def heartbeat_request(group: str, names: Names, **fields: Any) -> Any:
    """ConsumerGroupHeartbeat; `member` is an index, `owned` has partitions by topic, None if the
    member reports none."""
    owned, member = fields.pop("owned", None), fields.pop("member")
    given = owned and [
        {"topic_id": names.topics.get(topic, UNKNOWN_TOPIC), "partitions": owned[topic]}
        for topic in sorted(owned)
    ]
    return request(
        K.CONSUMER_GROUP_HEARTBEAT,
        group_id=group,
        member_id=names.member(member),
        topic_partitions=[] if owned == {} else given,
        **fields,
    )


def owned_of(assignment: Any) -> Owned:
    """Return the partitions of a plain answer; topics that are gone are left out."""
    found = {
        each["topic_id"].removeprefix("<topic ").removesuffix(">"): each["partitions"]
        for each in assignment["topic_partitions"]
    }
    return {topic: found[topic] for topic in found if topic != "None"}


def member_fetch_request(group: str, names: Names, version: int, **fields: Any) -> Any:
    """OffsetFetch of all partitions by a member; `member` is an index."""
    member = names.member(fields.pop("member")) or None
    asked = {"group_id": group, "member_id": member, "topics": None} | fields
    return request(K.OFFSET_FETCH, groups=[asked], require_stable=version >= 10)


def classic_join(group: str, names: Names) -> Any:
    """JoinGroup of a group that is not one of consumers."""
    return join_request(
        group,
        names,
        member=None,
        protocol_type="connect",
        protocols=[("range", consumer_subscription("orders"))],
    )


def wait_for_topic(pair: Pair, topic: str, count: int) -> None:
    """Wait until the group coordinator knows that the topic has so many partitions, 0 for none.

    A coordinator that has one partition knows it for all groups, so a member of another group asks
    until it is assigned all partitions.
    """
    for names in pair.names:
        names.topics.pop(topic, None)
    for place, names in enumerate(pair.names):
        for attempt in range(RETRIES):
            found = _probe(pair, place, topic, f"probe-{topic}-{count}-{attempt}")
            if sum(len(each.partitions) for each in found) == count:
                break
            pause()
        else:
            raise AssertionError(f"{topic} never has {count} partitions: {found}")
        for each in found:
            names.topics[topic] = each.topic_id


def _probe(pair: Pair, place: int, topic: str, group: str) -> list[Any]:
    """Join, leave, and return what was assigned."""

    def ask(epoch: int, **fields: Any) -> Any:
        message = request(
            K.CONSUMER_GROUP_HEARTBEAT, group_id=group, member_id="p", member_epoch=epoch, **fields
        )
        if place == 0:
            return pair.ours.ask(message, 1, connection_id=0)
        return pair.wire(ADMIN).ask(message, 1)

    joined = ask(
        0, rebalance_timeout_ms=60_000, subscribed_topic_names=[topic], topic_partitions=[]
    )
    assert joined.error_code == 0, joined
    ask(-1)
    return list(joined.assignment.topic_partitions)
