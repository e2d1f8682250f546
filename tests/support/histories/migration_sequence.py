"""Random sequences of requests of classic consumers and of members of KIP-848 to one group.

The group changes its protocol as the broker's `group.consumer.migration.policy` allows. Two classic
consumers with instance ids, or one without, and two members of KIP-848, which may have the same
instance ids: a program that was upgraded, or went back. Members may also use the ids of the others,
in either protocol.

The assignment has to be the same on both brokers although Kafka makes the member ids of classic
consumers: all members ask for `range`, which sorts static members by their instance id. Each
subscription has one topic, because Kafka writes a classic assignment in the order of topic ids.
Kafka begins a classic group in the order of a hash map of member ids. A sequence ends where that
decides who leads a stable group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.core.consumers import assignment, partitions_of, subscription
from support.histories.consumer_sequence import PARTITIONS, ConsumerSequence, Owned, Subscriber
from support.histories.group_pair import OtherLeader
from support.histories.group_requests import index_of
from support.histories.group_sequence import GroupSequence, Member

from broker_sim.core.coordinator.codec import CorruptRecord
from txnlog_kafka.wire.error_codes import error_name

MIGRATION = {
    # Its order of members is known, also where all of them are classic consumers.
    "group.consumer.assignors": "range",
    "group.consumer.assignor.offload.enable": "false",
}
"""Configurations of both brokers, besides those of `group_pair`."""
REQUESTS = 30
IDS = ("!a", "!b")
"""In the order of `range` before every id that a broker makes."""
NAMES = (("range", "roundrobin"), ("roundrobin", "range"))
"""Kafka cannot upgrade a group with a member that lacks its last protocol: UNKNOWN_SERVER_ERROR."""
ODD_BYTES = (b"", b"\0", b"\0\0")


@dataclass
class Consumer(Subscriber):
    """Classic consumer; `assigned` is what it owns, `format` the version of its subscription."""

    format: int = 3
    is_eager: bool = False
    """True if it gives up all its partitions before it joins again."""
    topic: str = "orders"
    offered: tuple[str, ...] = field(default_factory=tuple)


class MigrationSequence(ConsumerSequence):
    """Sequence of requests to one group, by members of both protocols."""

    def run(self) -> None:
        """REQUESTS requests, then all members leave."""
        rng = self.rng
        self.pair.leader_is_open, self.was_modern = True, False
        self.is_uniform, self.own_topic, self.is_assigning = False, None, False
        self.states = ("", "")
        for names in self.pair.names:
            names.members[:] = IDS
        self.is_static = is_static = rng.random() < 0.7
        for number in range(2 if is_static else 1):
            instance = f"i{number}" if is_static else None
            version = rng.choice((5, 7, 9)) if is_static else rng.choice((2, 4, 9))
            member = Consumer(f"c{number}", instance, [], version, assignor="range")
            member.format, member.is_eager = rng.choice((0, 1, 2, 3, 3)), rng.random() < 0.3
            member.offered = rng.choice(NAMES)
            self.members.append(member)
        for number, name in enumerate(IDS):
            instances = (None, f"i{number}", f"i{number}", f"i{number + 2}")
            instance = rng.choice(instances) if is_static else None
            self.members.append(Subscriber(name, instance, [], 1, number, 0, assignor="range"))
        for _ in range(REQUESTS):
            self.one_request()
            self.settle()
        self.end()

    def end(self) -> None:
        """Make all member ids leave, by both protocols."""
        for _ in range(2):
            known = range(len(self.pair.names[0].members))
            self.leave([(index, None) for index in known])
            self.settle()
            super().end()
        assert not any(self.pair.is_waiting(member.name) for member in self.members)

    def one_request(self) -> None:
        """Send a request that a member would send next, or any other one."""
        rng = self.rng
        idle = self.idle
        if idle and rng.random() < 0.7:
            self.natural(rng.choice(idle))
            return
        kinds = [self.any_beat, self.any_beat, self.any_heartbeat, self.any_heartbeat]
        kinds += [self.any_leave, self.any_commit, self.any_commit, self.any_member_fetch]
        kinds += [self.any_txn_commit, self.end_txn, self.any_fetch, self.any_delete]
        kinds += [self.delete_groups, self.describe, self.list_groups]
        kinds += [self.any_consumer_describe]
        if len(idle) == len(self.members):
            kinds += [self.any_join, self.any_join, self.any_classic_join, self.any_classic_join]
            kinds += [self.any_classic_join, self.any_sync]
        rng.choice(kinds)()

    def natural(self, member: Any) -> None:
        """The next step of a client that does its duty."""
        if not isinstance(member, Consumer):
            super().natural(member)
            return
        chance = self.rng.random()
        if member.must_join:
            self.join(member)
        elif member.protocol is not None:
            self.sync(member)
        elif chance < 0.6:
            self.heartbeat(member)
        elif chance < 0.7:
            member.topic = self.rng.choice(("orders", "other"))
            self.join(member)
        elif chance < 0.85:
            self.commit(member)
        else:
            self.leave([(member.index, None)])

    def any_member_fetch(self) -> None:
        """OffsetFetch of a member. Kafka answers one without an id with UNKNOWN_SERVER_ERROR."""
        if all(member.index is not None for member in self.members):
            super().any_member_fetch()
        else:
            self.any_fetch()

    def any_reads(self, member: Subscriber) -> dict[str, Any]:
        """A subscription to one topic."""
        member.reads = {"subscribed_topic_names": [self.rng.choice(("orders", "orders", "other"))]}
        return member.reads

    @property
    def candidates(self) -> list[Any]:
        """Members by whose ids any request may come. Without instance ids a classic consumer is not
        among them: it would join once more, and the order of two ids of brokers is not known."""
        own = [member for member in self.members if not isinstance(member, Consumer)]
        return self.members if self.is_static else own

    def any_index(self) -> int:
        """The index of any member id."""
        return super().any_index() if self.is_static else self.rng.randrange(len(IDS))

    # ------------------------------------------------------------------ the classic protocol

    def join(self, member: Member, /, **odd: Any) -> None:
        """JoinGroup, with what the member owns.

        Kafka forgets an empty consumer group when a member id joins that it does not know, but
        still describes it: such a member sends Heartbeat.
        """
        if self.states[1] == "Empty" and odd.get("member", member.index) is not None:
            self.heartbeat(member)
            return
        if isinstance(member, Consumer) and "protocols" not in odd:
            odd["protocols"] = self.protocols(member, member.offered)
        super().join(member, **odd)

    def protocols(self, member: Consumer, names: tuple[str, ...]) -> list[tuple[str, bytes]]:
        """The protocols of a JoinGroup."""
        owned = {} if member.is_eager else member.assigned
        metadata = subscription(member.topic, owned=owned, version=member.format)
        return [(name, metadata) for name in names]

    def any_classic_join(self) -> None:
        """JoinGroup in a way that may be refused. A consumer without an instance id uses no id but
        its own: the order of two ids that Kafka makes is not known."""
        rng = self.rng
        member = rng.choice(self.members[:-2])
        assert isinstance(member, Consumer)
        # Kafka answers members that wait to join when it refuses to upgrade a group for such bytes.
        odd_bytes = [(name, rng.choice(ODD_BYTES)) for name in member.offered]
        odd = rng.choice(
            (
                {"protocols": self.protocols(member, ("sticky",))},
                {"protocols": odd_bytes if member.instance is None else []},
                {"protocol_type": rng.choice(("connect", ""))},
                {"session_timeout_ms": 5_999},
                {"protocols": []},
            )
        )
        if member.instance is not None and rng.random() < 0.6:
            odd = rng.choice(
                (
                    {"member": self.any_index()},
                    {"member": self.any_index()},
                    {"member": None},
                    {"group_instance_id": rng.choice(("i0", "i1", "i2"))},
                )
            )
        self.join(member, **odd)

    def sync(self, member: Member, /, **odd: Any) -> None:
        """SyncGroup; the leader divides the partitions of each topic among its readers."""
        readers = {each.index: each for each in self.members if isinstance(each, Consumer)}
        others = member.others or []
        shares = {}
        for place, index in enumerate(others):
            topic = readers[index].topic if index in readers else "orders"
            partitions = range(PARTITIONS[topic])[place :: len(others)]
            shares[index] = assignment(**{topic: partitions})
        if shares and member.instance is None and self.rng.random() < 0.1:
            shares[others[0]] = self.rng.choice((b"part", assignment(b"own", orders=[0])))
        super().sync(member, **{"assignments": shares} | odd)

    def take_in(self, member: Member, answer: Any) -> None:
        """Update a member as a client does after an answer."""
        if not isinstance(member, Consumer) or "heartbeat_interval_ms" in answer:
            super().take_in(member, answer)
            return
        if not {"leader", "assignment", "error_code"} & set(answer) or "topics" in answer:
            return
        index, error = member.index, error_name(answer["error_code"])
        if error == "NONE" and answer.get("leader") == "":
            # A consumer group has no leader.
            member.index, member.must_join = index_of(answer["member_id"]), False
            member.generation, member.others = answer["generation_id"], None
            member.protocol = answer["protocol_name"] or ""
            return
        GroupSequence.take_in(self, member, answer)
        if member.index is None and member.instance is None and error != "UNKNOWN_MEMBER_ID":
            member.index = index
        if error == "NONE" and "assignment" in answer:
            member.assigned = owned_in(answer["assignment"])
        elif error in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"):
            member.assigned = {}

    def settle(self) -> None:
        """Wait until both brokers say the same; end where Kafka's hash map chose the leader."""
        super().settle()
        is_modern = self.states[1] != ""
        has_several = sum(isinstance(each, Consumer) for each in self.members) > 1
        if self.was_modern and self.states[0] == "Stable" and has_several:
            raise OtherLeader
        self.pair.leader_is_open |= is_modern
        self.was_modern = is_modern


def owned_in(data: bytes) -> Owned:
    """Partitions by topic of an assignment; none where a leader sent other bytes."""
    try:
        return partitions_of(data) if data else {}
    except CorruptRecord:
        return {}
