"""Random sequences of requests to one consumer group of KIP-848, driven on two brokers at once.

Four members with ids of their own making, and an administrator. Members mostly send what a client
would send next, else anything: old and future epochs, partitions that they do not own, ids of
others, subscriptions that change, expressions.

The assignment has to be the same on both brokers, partition by partition, although Kafka takes
members and topics in the order of hash maps: `range` sorts its members, and takes each topic on its
own. In a sequence with `uniform` all members read one topic, and the hashes of the members' ids
are in the order of the ids.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from support.brokers.probe import pause
from support.core.broker_build import request
from support.core.consumers import subscription
from support.histories.group_pair import ADMIN, RETRIES, Names, Pair
from support.histories.group_requests import (
    fetch_request,
    index_of,
    join_request,
)
from support.histories.group_sequence import GroupSequence, Member

from txnlog_kafka.wire.error_codes import error_name
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
        protocols=[("range", subscription("orders", version=0))],
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


K = ApiKey
REQUESTS = 24
PARTITIONS = {"orders": 5, "other": 3}
IDS = "abcd"
NEW_IDS = "abcdefghijklmno"
"""Java's hash map has members with these ids in the order of the ids."""
READS = (["orders"], ["orders", "other"], ["other"], ["orders", "nowhere"])
REGEXES = ("orders|other", "o.*", "orders", "__consumer_off.*")
"""Each matches a topic: the resolution of one that matches none shows in no answer."""
GROWN = 7


@dataclass
class Subscriber(Member):
    """Member; `generation` is its epoch, `owned` what it was told to own."""

    assignor: str | None = None
    owned: Owned = field(default_factory=dict)
    """Partitions that it reports; behind `assigned` until it has given some up."""
    assigned: Owned = field(default_factory=dict)
    reads: dict[str, Any] = field(default_factory=dict)


class ConsumerSequence(GroupSequence):
    """Sequence of requests to one group, most of them of consumers."""

    commit_versions = (8, 9, 9, 10, 10)

    def run(self) -> None:
        """REQUESTS requests, then all members leave."""
        for names in self.pair.names:
            names.members[:] = IDS
        rng = self.rng
        self.is_uniform = rng.random() < 0.3
        self.own_topic = None if self.is_uniform or rng.random() < 0.85 else f"grow-{self.group}"
        own_regex = (f"{self.own_topic}.*|orders",) if self.own_topic else ()
        self.regex = rng.choice(REGEXES + own_regex)
        self.is_assigning, is_static = False, rng.random() < 0.4
        for number, name in enumerate(IDS):
            instance = f"i{rng.choice((number, number, 0))}" if is_static else None
            member = Subscriber(name, instance, [], 1, number, 0)
            member.assignor = rng.choice((None, "uniform")) if self.is_uniform else "range"
            self.members.append(member)
        for _ in range(REQUESTS):
            self.one_request()
            self.settle()
        self.end()

    def end(self) -> None:
        """Make all member ids leave."""
        for index in range(len(self.pair.names[0].members)):
            self.beat(ADMIN, member=index, member_epoch=-1)
            self.settle()

    def one_request(self) -> None:
        """Send a request that a member would send next, or any other one."""
        rng = self.rng
        if rng.random() < 0.6:
            self.natural(rng.choice(self.members[:3] if rng.random() < 0.9 else self.members))
            return
        kinds = [self.any_beat, self.any_beat, self.any_beat, self.any_join, self.any_join]
        kinds += [self.any_commit, self.any_commit, self.any_member_fetch, self.any_fetch]
        kinds += [self.any_txn_commit, self.any_txn_commit, self.any_fetch]
        kinds += [self.end_txn, self.any_delete, self.delete_groups]
        kinds += [self.describe, self.list_groups, self.any_consumer_describe, self.any_classic]
        if self.own_topic is not None:
            kinds += [self.grow, self.grow, self.drop]
        rng.choice(kinds)()

    def natural(self, member: Subscriber) -> None:
        """The next step of a client that does its duty."""
        rng = self.rng
        chance = rng.random()
        if member.must_join:
            self.join_as(member)
        elif chance < 0.5:
            if rng.random() < 0.8:
                member.owned = member.assigned
            self.beat_as(member, owned=member.owned)
        elif chance < 0.6:
            self.beat_as(member)
        elif chance < 0.7:
            self.beat_as(member, owned=member.owned, rebalance_timeout_ms=50_000, **member.reads)
        elif chance < 0.8:
            self.beat_as(member, **self.any_reads(member))
        elif chance < 0.9:
            self.commit(member)
        else:
            epoch = -2 if member.instance is not None and rng.random() < 0.6 else -1
            self.beat_as(member, member_epoch=epoch)

    # ------------------------------------------------------------------ heartbeats

    @property
    def candidates(self) -> list[Any]:
        """Members by whose ids a heartbeat may come that no client would send."""
        return self.members

    def any_reads(self, member: Subscriber) -> dict[str, Any]:
        """A subscription that the assignors of the sequence can divide alike on both brokers.

        While Kafka has to run the assignor, it takes a new member that reads no topic yet for one
        that reads what all others read. The sequence has one expression: when one takes the place
        of another, ours begins an epoch at once, and Kafka when the new one is resolved.
        """
        rng = self.rng
        if self.is_uniform:
            reads = {"subscribed_topic_names": ["orders"]}
        elif self.is_assigning or rng.random() < 0.6:
            names = rng.choice(READS) + ([self.own_topic] if self.own_topic else [])
            reads = {"subscribed_topic_names": names}
        else:
            regex = rng.choice((self.regex, self.regex, ""))
            reads = {"subscribed_topic_regex": regex, "subscribed_topic_names": []}
            if rng.random() < 0.2:
                reads["subscribed_topic_names"] = rng.choice(READS)
        member.reads = reads
        return reads

    def join_as(self, member: Subscriber, /, **odd: Any) -> None:
        """A full heartbeat with epoch 0."""
        fields = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "server_assignor": member.assignor,
            "owned": {},
        }
        self.beat_as(member, **fields | self.any_reads(member) | odd)

    def beat_as(self, member: Subscriber, /, *, connection: str = "", **odd: Any) -> None:
        fields = {
            "member": member.index,
            "member_epoch": member.generation,
            "instance_id": member.instance,
        }
        self.beat(connection or member.name, **fields | odd)

    def beat(self, connection: str, *, version: int = 1, **fields: Any) -> None:
        self.ask(connection, lambda names: heartbeat_request(self.group, names, **fields), version)

    def any_beat(self) -> None:
        """A heartbeat that is wrong in one way, and changes no member's mind."""
        rng = self.rng
        member = rng.choice(self.candidates)
        odd: dict[str, Any] = rng.choice(
            (
                {"member_epoch": max(member.generation + rng.choice((-2, -1, -1, 1)), 1)},
                {"member_epoch": max(member.generation - 1, 1), "owned": member.assigned},
                {"member_epoch": max(member.generation - 1, 1), "owned": {"orders": [0, 4]}},
                {"member_epoch": rng.choice((-3, -2, -1))},
                {"member": self.any_index()},
                {"member": None, "member_epoch": rng.choice((0, 3, -1))},
                {"instance_id": rng.choice(("", "i0", "i1", "i9", None))},
                {"rack_id": ""},
                {"rack_id": "r1"},
                {"server_assignor": "other"},
                {"subscribed_topic_regex": rng.choice(("(", "[a", "(?=x)"))},
                {"owned": {"orders": [0, 1, 2, 3, 4], "nowhere": [0]}},
                {"owned": {}},
            )
        )
        version = 0 if "subscribed_topic_regex" not in odd and rng.random() < 0.3 else 1
        self.beat_as(member, connection=ADMIN, version=version, **odd)

    def any_join(self) -> None:
        """A member joins again, or in a way that is refused."""
        rng = self.rng
        member = rng.choice(self.candidates)
        odd = rng.choice(
            (
                {},
                {},
                {"rebalance_timeout_ms": -1},
                {"owned": None},
                {"owned": {"orders": [0]}},
                {"subscribed_topic_names": None, "subscribed_topic_regex": None},
                self.foreign(member),
                self.foreign(member),
                {"server_assignor": "other"},
                {"subscribed_topic_regex": "("},
            )
        )
        if not self.is_uniform and member.instance is not None and rng.random() < 0.2:
            # The broker makes the member id, which is another one on each broker: `range` does not
            # look at it, as the member is static.
            odd = {"version": 0, "member": None, "subscribed_topic_names": ["orders"]}
            odd["subscribed_topic_regex"] = None
        self.join_as(member, **odd)

    def foreign(self, member: Subscriber) -> dict[str, Any]:
        """Another member's id; or, as no client gives a member another instance, a new member id
        with the instance of another member."""
        known = self.pair.names[0].members
        if all(each.instance is None for each in self.members):
            return {"member": self.any_index()}
        if len(known) == len(NEW_IDS):
            return {}
        for names in self.pair.names:
            names.members.append(NEW_IDS[len(names.members)])
        instance = self.rng.choice(("i0", "i1", "i2"))
        return {"member": len(known) - 1, "instance_id": instance}

    def take_in(self, member: Member, answer: Any) -> None:
        """Update a member as a client does after a heartbeat."""
        error = error_name(answer.get("error_code", 0))
        if "heartbeat_interval_ms" not in answer or not isinstance(member, Subscriber):
            return
        if error == "NONE":
            member.index = index_of(answer["member_id"])
            member.generation = max(answer["member_epoch"], 0)
            member.must_join = answer["member_epoch"] < 0
            if answer["assignment"] is not None:
                member.assigned = owned_of(answer["assignment"])
        elif error in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"):
            member.must_join = True
        if member.must_join:
            member.owned = member.assigned = {}

    # ------------------------------------------------------------------ offsets

    def any_metadata(self) -> dict[str, Any]:
        return {}

    def any_member_fetch(self) -> None:
        """OffsetFetch of a member, with its epoch or another one."""
        rng = self.rng
        member = rng.choice(self.members)
        fields = {"member_epoch": member.generation + rng.choice((0, 0, 0, 1, -1))}
        fields["member"] = rng.choice((member.index, member.index, self.any_index()))
        version = rng.choice((9, 10))
        self.ask(
            ADMIN,
            lambda names: member_fetch_request(self.group, names, version, **fields),
            version,
        )

    # ------------------------------------------------------------------ administration

    def any_consumer_describe(self) -> None:
        message = request(
            K.CONSUMER_GROUP_DESCRIBE,
            group_ids=[self.group, self.group + "-nobody"],
            include_authorized_operations=self.rng.random() < 0.5,
        )
        self.ask(ADMIN, lambda _: message, self.rng.choice((0, 1)))

    def any_classic(self) -> None:
        """JoinGroup of another type, or Heartbeat and LeaveGroup of the classic protocol."""
        rng = self.rng
        index = self.any_index()
        make = rng.choice(
            (
                lambda names: classic_join(self.group, names),
                lambda names: request(
                    K.HEARTBEAT,
                    group_id=self.group,
                    member_id=names.member(index),
                    generation_id=self.members[0].generation,
                ),
            )
        )
        self.ask(ADMIN, make, 4)

    def grow(self) -> None:
        """Make the sequence's own topic, or give it more partitions."""
        assert self.own_topic is not None
        known = self.pair.names[0].topics.get(self.own_topic)
        if known is None:
            topic = {"name": self.own_topic, "num_partitions": 4, "replication_factor": 1}
            message, version, count = request(K.CREATE_TOPICS, topics=[topic]), 7, 4
        else:
            message = request(
                K.CREATE_PARTITIONS,
                topics=[{"name": self.own_topic, "count": GROWN, "assignments": None}],
                timeout_ms=30_000,
            )
            version, count = 3, GROWN
        self.pair.retry(lambda _: message, version, lambda _: 0)
        self.told.append(f"{self.own_topic} has {count} partitions")
        self.change_topic(count)

    def drop(self) -> None:
        """Delete the sequence's own topic."""
        assert self.own_topic is not None
        if self.own_topic in self.pair.names[0].topics:
            message = request(K.DELETE_TOPICS, topic_names=[self.own_topic], timeout_ms=30_000)
            self.pair.retry(lambda _: message, 5, lambda _: 0)
            self.told.append(f"{self.own_topic} is deleted")
            self.change_topic(0)

    def change_topic(self, count: int) -> None:
        """Wait for the sequence's own topic to be so; then a heartbeat sees that.

        Kafka looks at topics when a heartbeat comes after they changed, ours at each that does not
        bring another expression.
        """
        assert self.own_topic is not None
        wait_for_topic(self.pair, self.own_topic, count)
        for member in self.members:
            if not member.must_join:
                self.beat_as(member)
                self.settle()

    def settle(self) -> None:
        """Wait until both brokers say the same of the group and its offsets."""

        def offsets(names: Names) -> Any:
            return fetch_request(self.group, names, 9, None, stable=True)

        one = [self.group]
        classic, modern, _ = self.pair.settle(
            [
                (lambda _: request(K.DESCRIBE_GROUPS, groups=one), 6),
                (lambda _: request(K.CONSUMER_GROUP_DESCRIBE, group_ids=one), 1),
                (offsets, 9),
            ]
        )
        self.exists = 0 in (each["groups"][0]["error_code"] for each in (classic, modern))
        instances = {
            each["member_id"]: each["instance_id"] for each in modern["groups"][0]["members"]
        }
        for member in self.members:
            member.instance = instances.get(f"<member {member.index}>", member.instance)
        self.states = tuple(each["groups"][0]["group_state"] for each in (classic, modern))
        self.is_assigning = self.states[1] == "Assigning"
        self.told.append(f"    now: {modern['groups'][0]}")
