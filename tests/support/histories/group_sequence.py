"""Random sequences of requests to one group, driven on two brokers at once.

Three members, each on a connection of its own, and an administrator. Members mostly send what a
client would send next, else anything: wrong generations, member ids of others, foreign instance
ids, old versions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.core.broker_build import request
from support.core.consumers import subscription
from support.core.plain_messages import error_codes, plain
from support.histories.group_pair import ADMIN, Names, Pair
from support.histories.group_requests import (
    code_while_it_prepares,
    commit_request,
    delete_request,
    fetch_request,
    index_of,
    join_request,
    leave_request,
    sync_request,
    txn_commit_request,
)

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

K = ApiKey
REQUESTS = 24
TOPICS = ("orders", "other")
READS = (subscription("orders", version=0), subscription("orders", "other", version=0), b"", b"\0")
PROTOCOLS = (
    ("range",),
    ("range", "roundrobin"),
    ("roundrobin", "range"),
    ("sticky", "cooperative-sticky", "range"),
    ("nobody-else-has-this",),
)


@dataclass
class Member:
    name: str
    instance: str | None
    protocols: list[tuple[str, bytes]]
    version: int
    index: int | None = None
    generation: int = -1
    protocol: str | None = None
    others: list[int] | None = None
    """The members of the generation, when it leads."""
    must_join: bool = True
    sends_as: int | None = None
    """The member id of its last JoinGroup or SyncGroup."""


@dataclass
class GroupSequence:
    """Sequence of requests to one group on both brokers."""

    commit_versions = (2, 6, 7, 8, 9, 10)
    pair: Pair
    group: str
    rng: random.Random
    met: Counter[tuple[str, str]]
    members: list[Member] = field(default_factory=list)
    identities: list[tuple[int, int]] = field(default_factory=list)
    leader: int | None = None
    exists: bool = False
    told: list[str] = field(default_factory=list)

    def run(self) -> None:
        """REQUESTS requests, then all members leave, which releases whoever is parked."""
        self.pair.leader_is_open = False
        for names in self.pair.names:
            names.members.clear()
        rng = self.rng
        is_static = rng.random() < 0.4
        for number in range(3):
            names = rng.choice(PROTOCOLS[:4] if number else PROTOCOLS[:3])
            self.members.append(
                Member(
                    f"m{number}",
                    f"i{rng.randrange(2)}" if is_static else None,
                    self.reading(names),
                    9 if is_static else rng.choice((0, 2, 4, 5, 7, 9)),
                )
            )
        for _ in range(REQUESTS):
            self.one_request()
            self.settle()
        self.end()

    def end(self) -> None:
        """Make all member ids leave, which releases every parked request; twice, because that tells
        new ids."""
        for _ in range(2):
            known = range(len(self.pair.names[0].members))
            self.leave([(index, None) for index in known])
            self.settle()
        assert not any(self.pair.is_waiting(member.name) for member in self.members)

    def one_request(self) -> None:
        """Send a request that a member would send next, or any other one."""
        rng = self.rng
        idle = self.idle
        if idle and rng.random() < 0.6:
            self.natural(rng.choice(idle))
            return
        kinds = [self.any_heartbeat, self.any_leave, self.any_commit, self.any_fetch]
        kinds += [self.any_commit, self.any_txn_commit, self.any_txn_commit, self.end_txn]
        kinds += [self.any_delete, self.delete_groups, self.describe, self.list_groups]
        if idle:
            kinds += [self.any_join, self.any_join, self.any_sync, self.any_sync]
        rng.choice(kinds)()

    @property
    def idle(self) -> list[Any]:
        """Members that wait for no answer."""
        return [member for member in self.members if not self.pair.is_waiting(member.name)]

    def natural(self, member: Member) -> None:
        """The next step of a client that does its duty."""
        if member.must_join:
            self.join(member)
        elif member.protocol is not None:
            self.sync(member)
        elif self.rng.random() < 0.5:
            self.heartbeat(member)
        else:
            self.commit(member)

    def settle(self) -> None:
        """Wait until both brokers say the same of the group and its offsets."""
        described, _ = self.pair.settle(
            [
                (lambda _: request(K.DESCRIBE_GROUPS, groups=[self.group]), 6),
                (lambda names: fetch_request(self.group, names, 9, [*TOPICS], stable=True), 9),
            ]
        )
        self.exists = described["groups"][0]["error_code"] == 0

    # ------------------------------------------------------------------ what is told

    def ask(self, connection: str, make, version: int, **more: Any) -> Any:
        """Ask both, remember what was met, and let all who are answered take it in."""
        asked = make(self.pair.names[0])
        name = type(asked).__name__.removesuffix("Request")
        self.told.append(f"{connection} v{version}: {str(asked)[:900]}")
        answer = self.pair.ask(connection, make, version, **more)
        self.told += [f"    {told}: {plain}" for told, plain in self.pair.answers.items()]
        self.met[name, "parked"] += answer is None
        for told in self.pair.answers.values():
            for code in error_codes(told):
                self.met[name, error_name(code)] += 1
        for member in self.members:
            if member.name in self.pair.answers:
                self.take_in(member, self.pair.answers[member.name])
        return answer

    def take_in(self, member: Member, answer: Any) -> None:
        """Update a member as a client does after JoinGroup, SyncGroup or Heartbeat."""
        error = error_name(answer["error_code"])
        if "leader" in answer:
            self.take_in_join(member, answer, error)
        elif error == "NONE":
            if "assignment" in answer:
                member.protocol = None
        elif error in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"):
            member.must_join, member.index = True, None
        else:
            member.must_join = True

    def take_in_join(self, member: Member, answer: Any, error: str) -> None:
        if answer["member_id"].startswith("<member ") and error in ("NONE", "MEMBER_ID_REQUIRED"):
            member.index = index_of(answer["member_id"])
        if error == "NONE":
            member.must_join = False
            member.generation = answer["generation_id"]
            member.protocol = answer["protocol_name"] or ""
            leads = answer["leader"] == answer["member_id"]
            self.leader = index_of(answer["leader"])
            member.others = [index_of(m["member_id"]) for m in answer["members"]] if leads else None
        elif error != "MEMBER_ID_REQUIRED":
            member.index = None

    # ------------------------------------------------------------------ members

    def any_join(self) -> None:
        rng = self.rng
        member = rng.choice(self.idle)
        odd: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: {"member": self.any_index()},
            lambda: {"member": self.any_index()},
            lambda: {"member": None},
            lambda: {"protocols": self.reading(rng.choice(PROTOCOLS))},
            lambda: {"protocols": self.reading(rng.choice(PROTOCOLS))},
            lambda: {"protocol_type": rng.choice(("connect", ""))},
            lambda: {"group_instance_id": rng.choice(("i0", "i1", None)), "version": 9},
            lambda: {"session_timeout_ms": rng.choice((0, 5_999, 1_800_001))},
        )
        self.join(member, **rng.choice(odd)())

    def reading(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """These protocols, each with any subscription."""
        return [(name, self.rng.choice(READS)) for name in names]

    def join(self, member: Member, /, **odd: Any) -> None:
        version = odd.pop("version", member.version)
        fields = {
            "member": member.index,
            "protocols": member.protocols,
            "group_instance_id": member.instance,
        } | odd
        if self.begins(member, fields["member"]):
            self.ask(member.name, lambda names: join_request(self.group, names, **fields), version)

    def begins(self, member: Member, index: int | None) -> bool:
        """True if no parked request has this member id: Kafka would never answer that request."""
        sending = [m.sends_as for m in self.members if self.pair.is_waiting(m.name)]
        member.sends_as = index
        return index is None or index not in sending

    def any_sync(self) -> None:
        rng = self.rng
        member = rng.choice(self.idle)
        odd: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: {"member": self.any_index()},
            lambda: {"generation_id": member.generation + rng.choice((-1, 1))},
            lambda: {"protocol_name": rng.choice((None, "other", "range")), "version": 5},
            lambda: {"protocol_type": rng.choice((None, "other")), "version": 5},
            lambda: {"group_instance_id": rng.choice(("i0", "i1", "i9")), "version": 5},
        )
        self.sync(member, **rng.choice(odd)())

    def sync(self, member: Member, /, **odd: Any) -> None:
        """SyncGroup; the leader brings parts for all, or for all but one."""
        parts = {}
        for index in member.others or ():
            if self.rng.random() < 0.9:
                parts[index] = b"part%d" % index
        version = odd.pop("version", min(member.version, 5))
        fields = {
            "member": member.index,
            "generation_id": member.generation,
            "group_instance_id": member.instance,
            "protocol_type": "consumer",
            "protocol_name": member.protocol or "range",
            "assignments": parts,
        } | odd
        if self.begins(member, fields["member"]):
            self.ask(member.name, lambda names: sync_request(self.group, names, **fields), version)

    def any_heartbeat(self) -> None:
        """A Heartbeat from the administrator's connection, so also of members that are parked."""
        rng = self.rng
        self.heartbeat(
            rng.choice(self.members),
            connection=ADMIN,
            drift=rng.choice((0, 0, 1, -1)),
            instance=rng.choice(("own", "own", "i0", "i1", None)),
        )

    def heartbeat(
        self, member: Member, *, connection: str = "", drift: int = 0, instance: Any = "own"
    ) -> None:
        def make(names: Names) -> Any:
            return request(
                K.HEARTBEAT,
                group_id=self.group,
                member_id=names.member(member.index),
                generation_id=member.generation + drift,
                group_instance_id=member.instance if instance == "own" else instance,
            )

        self.ask(connection or member.name, make, 4 if instance != "own" else 3)

    def any_leave(self) -> None:
        """LeaveGroup of one or two, by the administrator."""
        rng = self.rng
        leaving: list[tuple[int | None, str | None]] = []
        for _ in range(rng.choice((1, 1, 2))):
            index = self.any_index()
            instance = rng.choice((None, None, "i0", "i1"))
            leaving.append((rng.choice((index, index, None)), instance))
        self.leave(leaving, version=rng.choice((1, 3, 4, 5)))

    def leave(self, leaving: list[tuple[int | None, str | None]], *, version: int = 5) -> None:
        """LeaveGroup. The parked SyncGroup of one who leaves is answered by us alone."""
        for each in leaving if version >= 3 else leaving[:1]:
            by_instance = each[0] is None
            if each[0] == self.leader or by_instance:
                self.pair.leader_is_open = True
            gone = [
                member.name
                for member in self.members
                if self.pair.is_waiting(member.name)
                and member.protocol is not None
                and not member.must_join
                and (member.instance == each[1] if by_instance else member.sends_as == each[0])
            ]
            self.ask(
                ADMIN,
                lambda names, each=each: leave_request(self.group, names, [each]),
                version,
                forgets=gone[0] if gone else "",
            )

    def any_index(self) -> int:
        """Return the index of any member id, or -1 for an unknown one."""
        return self.rng.choice([*range(len(self.pair.names[0].members)), -1])

    # ------------------------------------------------------------------ offsets

    def any_commit(self) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            self.commit(None)
        else:
            instance = rng.choice(("own", "own", "i0", "i1", None))
            drift = rng.choice((0, 0, 0, 1, -1)) if self.exists else rng.choice((0, 1))
            self.commit(rng.choice(self.members), drift=drift, instance=instance)

    def commit(self, member: Member | None, *, drift: int = 0, instance: Any = "own") -> None:
        """OffsetCommit; without a member it is that of a simple consumer."""
        rng = self.rng
        version = rng.choice(self.commit_versions)
        fields: dict[str, Any] = {"generation_id_or_member_epoch": -1}
        if member is not None:
            fields["generation_id_or_member_epoch"] = member.generation + drift
            fields["member"] = member.index
            fields["group_instance_id"] = member.instance if instance == "own" else instance
        fields |= self.any_metadata()
        offsets = self.any_offsets()
        self.ask(
            ADMIN,
            lambda names: commit_request(self.group, names, version, offsets, **fields),
            version,
        )

    def any_metadata(self) -> dict[str, Any]:
        """Field of the offsets' metadata. A first commit that is refused for its metadata leaves a
        group behind in Kafka that DescribeGroups denies."""
        metadata = self.rng.choice(("", "m", "ä" * 4096, "x" * 4097))
        return {"metadata": metadata if self.exists else "m"}

    def any_offsets(self) -> dict[tuple[str, int], int]:
        places = [("orders", 0), ("orders", 1), ("other", 0), ("orders", 9), ("nowhere", 0)]
        chosen = self.rng.sample(places, self.rng.choice((1, 2)))
        return {place: self.rng.randrange(100) for place in sorted(chosen)}

    def any_fetch(self) -> None:
        rng = self.rng
        version = rng.choice((1, 2, 5, 7, 8, 9, 10))
        topics = rng.choice((None, ["orders"], ["orders", "nowhere"]))
        if version < 2:
            topics = topics or ["other"]
        stable = version >= 7 and rng.random() < 0.7
        self.ask(
            ADMIN,
            lambda names: fetch_request(self.group, names, version, topics, stable=stable),
            version,
        )

    def any_delete(self) -> None:
        topics = self.rng.choice((["orders"], ["other", "nowhere"], ["orders", "other"]))
        self.ask(ADMIN, lambda _: delete_request(self.group, topics), 0)

    # ------------------------------------------------------------------ transactions

    def producer(self, names: Names) -> dict[str, Any]:
        """Return the fields that name the producer of the transaction in requests."""
        producer_id, epoch = self.identities[self.pair.names.index(names)]
        return {
            "transactional_id": self.group,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def init_producer(self) -> None:
        """InitProducerId, on the first use."""
        if self.identities:
            return
        message = request(
            K.INIT_PRODUCER_ID, transactional_id=self.group, transaction_timeout_ms=60_000
        )
        answers = self.pair.retry(lambda _: message, 4, lambda answer: answer.error_code)
        self.identities = [(each.producer_id, each.producer_epoch) for each in answers]

    def any_txn_commit(self) -> None:
        """Send TxnOffsetCommit, of a member or of an unknown one; its partition joins the
        transaction first."""
        rng = self.rng
        self.init_producer()
        version = rng.choice((3, 4, 5, 6))
        if version < 5:
            self.pair.retry(
                lambda names: request(
                    K.ADD_OFFSETS_TO_TXN, group_id=self.group, **self.producer(names)
                ),
                4,
                lambda answer: answer.error_code,
            )
        fields: dict[str, Any] = {}
        if rng.random() < 0.8:
            member = rng.choice(self.members)
            generation = member.generation + rng.choice((0, 0, 0, 1))
            fields["generation_id_or_member_epoch"] = generation
            fields["member"] = member.index
            fields["group_instance_id"] = rng.choice((member.instance, member.instance, "i0"))
        offsets = self.any_offsets()
        answers = self.pair.retry(
            lambda names: txn_commit_request(
                self.group, names, version, offsets, **self.producer(names), **fields
            ),
            version,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        told = [names.plain(answer) for names, answer in zip(self.pair.names, answers, strict=True)]
        for code in error_codes(self.pair.agree("TxnOffsetCommit", told)):
            self.met["TxnOffsetCommit", error_name(code)] += 1

    def end_txn(self) -> None:
        """EndTxn, until its markers are written."""
        if not self.identities:
            return
        committed = self.rng.random() < 0.6
        answers = self.pair.retry(
            lambda names: request(K.END_TXN, committed=committed, **self.producer(names)),
            5,
            lambda answer: answer.error_code,
        )
        error = self.pair.agree("EndTxn", [error_name(answer.error_code) for answer in answers])
        self.met["EndTxn", error] += 1
        if error == "NONE":
            self.identities = [(each.producer_id, each.producer_epoch) for each in answers]
        describe = request(K.DESCRIBE_TRANSACTIONS, transactional_ids=[self.group])
        self.pair.retry(lambda _: describe, 0, code_while_it_prepares)

    # ------------------------------------------------------------------ administration

    def delete_groups(self) -> None:
        """DeleteGroups of this and of one that is not there."""
        names = [self.group, self.group + "-nobody", self.group]
        message = request(K.DELETE_GROUPS, groups_names=names)
        self.ask(ADMIN, lambda _: message, self.rng.randrange(4))

    def describe(self) -> None:
        """DescribeGroups in any version."""
        message = request(
            K.DESCRIBE_GROUPS,
            groups=[self.group, self.group + "-nobody"],
            include_authorized_operations=self.rng.random() < 0.5,
        )
        self.ask(ADMIN, lambda _: message, self.rng.choice((0, 3, 4, 5, 6)))

    def list_groups(self) -> None:
        """ListGroups; of the answer only this group counts."""
        rng = self.rng
        message = request(
            K.LIST_GROUPS,
            states_filter=rng.choice(([], ["stable"], ["EMPTY", "PreparingRebalance"])),
            types_filter=rng.choice(([], ["Classic"], ["consumer"])),
        )
        answers = self.pair.retry(
            lambda _: message, rng.choice((3, 4, 5)), lambda answer: answer.error_code
        )
        told = [
            [plain(group) for group in answer.groups if group.group_id == self.group]
            for answer in answers
        ]
        self.pair.agree("ListGroups", told)
        self.met["ListGroups", "NONE"] += 1
