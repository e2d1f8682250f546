"""Members of a consumer group (the classic protocol), which read a topic and commit how far.

A plain member processes records and then commits: at least once. A copier writes them to another
topic in a transaction that its offsets are part of, with its member id and generation: exactly
once. None goes on after a commit whose outcome it does not know: a plain member joins again as a
new one, so that a commit which comes late is not its own any more, and a copier initialises its
producer again. Nobody heartbeats while it reads: a session is lost when that takes too long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

from simulation.checkers.group_history import (
    NOTHING_COMMITTED,
    Committed,
    GroupHistory,
    metadata_of,
)
from simulation.load.reader import OFFSET_FETCH_VERSION_MAX, read_partition
from simulation.load.routing import (
    GROUP,
    READ_TIMEOUT_MS,
    RETRY_MS,
    TRANSACTION,
    Routing,
    Where,
    ask_once,
)
from simulation.load.transactions import (
    ADD_OFFSETS_VERSION_MAX,
    ADD_PARTITIONS_VERSION_MAX,
    COMMIT_IN_TRANSACTION_VERSION_MAX,
    END_TXN_VERSION_MAX,
    PRODUCE_VERSION_MAX,
    Owner,
    add_request,
    end_request,
    errors_of,
    init_request,
    owned_batch,
    produce_request,
)
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import Record

GROUP_ID = "readers"
SESSION_MS = 1_500
REBALANCE_MS = 1_000
JOIN_TIMEOUT_MS = 6_000
MAX_POLL_RECORDS = 20
"""Records of all partitions in a turn. A batch with their copies fits into a small segment."""
WORK_MS = 300
TRANSACTION_TIMEOUT_MS = 10_000
PROTOCOL = "consumer"
ASSIGNOR = "in-turn"
NAMED_VERSION_MAX = 9
"""The last version of OffsetCommit that names topics rather than ids."""

_JOIN = APIS[ApiKey.JOIN_GROUP].request
_SYNC = APIS[ApiKey.SYNC_GROUP].request
_HEARTBEAT = APIS[ApiKey.HEARTBEAT].request
_LEAVE = APIS[ApiKey.LEAVE_GROUP].request
_COMMIT = APIS[ApiKey.OFFSET_COMMIT].request
_OFFSETS = APIS[ApiKey.OFFSET_FETCH].request
_DESCRIBE = APIS[ApiKey.DESCRIBE_GROUPS].request
_ADD_OFFSETS = APIS[ApiKey.ADD_OFFSETS_TO_TXN].request
_COMMIT_IN_TRANSACTION = APIS[ApiKey.TXN_OFFSET_COMMIT].request

_NOT_TAKEN = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS}
"""A commit had no effect, for sure. Others may come after the append, as NOT_COORDINATOR does."""


class Joined(NamedTuple):
    """Membership in a generation."""

    generation: int
    member_id: str
    partitions: Sequence[int]


@dataclass(slots=True)
class Member:
    """A process that belongs to the group, from its start on."""

    name: str
    instance_id: str | None
    """Instance id of a static member (KIP-345)."""
    topic: str
    partitions: int
    places: Routing
    history: GroupHistory
    is_over: Callable[[], bool]
    """True if the member is to leave."""
    delay_ms: int = 0
    """Before it does anything."""
    chance: Callable[[], None] = lambda: None
    """Called between two requests: what may happen to the process then."""
    _member_id: str = ""
    anew: ClassVar[frozenset[ErrorCode]] = frozenset(
        {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
    )
    """Errors after which the member id is worth nothing any more."""

    def live(self) -> Operation[None]:
        """Join, read and commit, until it is over; then leave."""
        yield Sleep(self.delay_ms)
        while not self.is_over():
            joined = yield from self._join()
            if joined is None:
                yield Sleep(RETRY_MS)
            else:
                yield from self._work(joined)
        yield from self._leave()

    # ------------------------------------------------------------------ membership

    def _leave(self) -> Operation[None]:
        leaving = _LEAVE.MemberIdentity(
            member_id=self._member_id, group_instance_id=self.instance_id, reason=None
        )
        yield from self._once(_LEAVE(group_id=GROUP_ID, members=[leaving]))

    def _join(self) -> Operation[Joined | None]:
        subscription = struct.pack(">hih", 0, 1, len(self.topic)) + self.topic.encode()
        request = _JOIN(
            group_id=GROUP_ID, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id, group_instance_id=self.instance_id, protocol_type=PROTOCOL,
            protocols=[_JOIN.JoinGroupRequestProtocol(
                name=ASSIGNOR, metadata=subscription + struct.pack(">i", -1)
            )], reason=None,
        )  # fmt: skip
        answer = yield from self._once(request, timeout_ms=JOIN_TIMEOUT_MS)
        if answer is None or not self._is_right(answer.error_code):
            if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            return None
        self._member_id = answer.member_id
        yield from self._moment()
        return (yield from self._sync(answer))

    def _sync(self, joined: Message) -> Operation[Joined | None]:
        assignments = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            for turn, each in enumerate(sorted(joined.members, key=lambda m: m.member_id)):
                own = range(turn, self.partitions, len(joined.members))
                assignments.append(
                    _SYNC.SyncGroupRequestAssignment(
                        member_id=each.member_id, assignment=bytes(own)
                    )
                )
        request = _SYNC(
            group_id=GROUP_ID, generation_id=joined.generation_id, member_id=joined.member_id,
            group_instance_id=self.instance_id, protocol_type=PROTOCOL, protocol_name=ASSIGNOR,
            assignments=assignments,
        )  # fmt: skip
        answer = yield from self._once(request, timeout_ms=JOIN_TIMEOUT_MS)
        if answer is None or not self._is_right(answer.error_code):
            return None
        found = Joined(joined.generation_id, joined.member_id, list(bytes(answer.assignment)))
        owner = self.instance_id or joined.member_id
        self.history.on_assigned(found.generation, owner, found.partitions)
        return found

    def _beat(self, joined: Joined) -> Operation[Joined | None]:
        """Heartbeat; the membership after it, or None when the member has to join again."""
        request = _HEARTBEAT(
            group_id=GROUP_ID, generation_id=joined.generation, member_id=joined.member_id,
            group_instance_id=self.instance_id,
        )  # fmt: skip
        answer = yield from self._once(request)
        return joined if answer is not None and self._is_right(answer.error_code) else None

    def _is_right(self, error: int) -> bool:
        if error in self.anew:
            self._member_id = ""
        elif error:
            self.places.forget()
        return error == ErrorCode.NONE

    # ------------------------------------------------------------------ work

    def _work(self, joined: Joined) -> Operation[None]:
        """Until the member has to join again, or a commit has failed."""
        if not (yield from self._begin()):
            return
        positions: dict[int, int] | None = None
        while not self.is_over():
            if positions is None:
                positions = yield from self._positions(joined)
            else:
                after = yield from self._read(positions)
                if after and not (yield from self._commit(joined, positions, after)):
                    return
                positions |= after
            following = yield from self._beat(joined)
            if following is None:
                return
            if following.partitions != joined.partitions:
                positions = None
            joined = following
            yield Sleep(WORK_MS)

    def _positions(self, joined: Joined) -> Operation[dict[int, int] | None]:
        committed = yield from read_committed_offsets(
            self.places, self.history, self.topic, self.partitions
        )
        if committed is None:
            return None
        return {n: max(0, committed[n].offset if n in committed else 0) for n in joined.partitions}

    def _read(self, positions: Mapping[int, int]) -> Operation[dict[int, int]]:
        """Process what is new; the next offsets of the partitions where something was."""
        after, left = {}, MAX_POLL_RECORDS
        for number, position in positions.items():
            records, end = yield from read_partition(
                self.places, self.topic, number, position, read_committed=True
            )
            if len(records) > left:
                records = records[:left]
                end = records[-1].record_offset + 1 if records else position
            left -= len(records)
            self._process(number, records)
            if end > position:
                after[number] = end
        return after

    def _begin(self) -> Operation[bool]:
        """Before the first read of a generation; whether it goes on."""
        yield from ()
        return True

    def _process(self, number: int, records: Sequence[Record]) -> None:
        self.history.on_processed(number, records)

    def _commit(
        self, joined: Joined, before: Mapping[int, int], after: Mapping[int, int]
    ) -> Operation[bool]:
        """Commit the next offsets; False when that was refused or is not known."""
        del before
        yield from self._moment()
        topic_type = _COMMIT.OffsetCommitRequestTopic
        request = _COMMIT(
            group_id=GROUP_ID, generation_id_or_member_epoch=joined.generation,
            member_id=joined.member_id, group_instance_id=self.instance_id,
            topics=[topic_type(name=self.topic, partitions=[
                topic_type.OffsetCommitRequestPartition(**fields)
                for fields in commit_fields(joined.generation, after)
            ])],
        )  # fmt: skip
        newest = self.history.on_commit_sent(joined.generation, after)
        answer = yield from self._once(request, version_max=NAMED_VERSION_MAX)
        if answer is None:
            self._member_id = ""
            return False
        errors = errors_of(answer)
        if errors != {ErrorCode.NONE}:
            if not errors <= _NOT_TAKEN:
                self._member_id = ""
            self.places.forget()
            return False
        self.history.on_committed(joined.generation, newest)
        self.history.on_durable(after)
        return True

    # ------------------------------------------------------------------ requests

    def _moment(self) -> Operation[None]:
        """Let the process die or stand still by chance."""
        self.chance()
        yield Sleep(0)

    def _coordinator(self) -> Operation[int]:
        return self.places.coordinator(GROUP, GROUP_ID)

    def _once(
        self,
        request: Message,
        *,
        where: Where | None = None,
        version_max: int | None = None,
        timeout_ms: int = READ_TIMEOUT_MS,
    ) -> Operation[Message | None]:
        """The answer; None when there was none."""
        node = yield from (where or self._coordinator)()
        answer = yield from ask_once(node, request, version_max, timeout_ms)
        if answer is None:
            self.places.forget()
        return answer


@dataclass(slots=True)
class Copier(Member):
    """A member that copies what it reads, each record once (KIP-447)."""

    target: str = ""
    """The topic of the copies; it has one partition."""
    _owner: Owner | None = None
    _sequence: int = 0
    _read_last: list[str] = field(default_factory=list)

    def _begin(self) -> Operation[bool]:
        request = init_request(self.name, TRANSACTION_TIMEOUT_MS)
        answer = yield from self._once(request, where=self._transaction_coordinator)
        self._sequence, self._owner = 0, None
        self._read_last.clear()
        if answer is not None and answer.error_code:
            self.places.forget()
        if answer is None or answer.error_code:
            return False
        self._owner = Owner.of_answer(self.name, answer)
        self.history.on_initialised(self.name)
        return True

    def _transaction_coordinator(self) -> Operation[int]:
        return self.places.coordinator(TRANSACTION, self.name)

    def _process(self, number: int, records: Sequence[Record]) -> None:
        self.history.on_processed(number, records)
        self._read_last += [f"{number}:{record.record_offset}" for record in records]

    def _commit(
        self, joined: Joined, before: Mapping[int, int], after: Mapping[int, int]
    ) -> Operation[bool]:
        del before
        names, self._read_last = self._read_last, []
        done = yield from self._transaction(joined, names, after)
        if done:
            self.history.on_durable(after)
        else:
            self.places.forget()
        return done

    def _transaction(
        self, joined: Joined, names: Sequence[str], after: Mapping[int, int]
    ) -> Operation[bool]:
        owner = self._owner
        if owner is None:
            return False
        key = self.history.on_copy(self.name, after)
        batch = owned_batch(owner, self._sequence, key, [name.encode() for name in names])
        newest = self.history.on_commit_sent(joined.generation, after)
        steps = (
            (add_request(owner, {self.target: [0]}), ADD_PARTITIONS_VERSION_MAX,
             self._transaction_coordinator),
            (produce_request(self.target, 0, batch, self.name), PRODUCE_VERSION_MAX,
             partial(self.places.leader, self.target, 0)),
            (_ADD_OFFSETS(group_id=GROUP_ID, **owner._asdict()), ADD_OFFSETS_VERSION_MAX,
             self._transaction_coordinator),
            (self._offsets(joined, after, owner), COMMIT_IN_TRANSACTION_VERSION_MAX,
             self._coordinator),
            (end_request(owner, committed=True), END_TXN_VERSION_MAX,
             self._transaction_coordinator),
        )  # fmt: skip
        for request, version_max, where in steps:
            yield from self._moment()
            answer = yield from self._once(request, where=where, version_max=version_max)
            if answer is None or errors_of(answer) != {ErrorCode.NONE}:
                return False
            if isinstance(request, _COMMIT_IN_TRANSACTION):
                self.history.on_committed(joined.generation, newest)
        self._sequence += len(names)
        return True

    def _offsets(self, joined: Joined, after: Mapping[int, int], owner: Owner) -> Message:
        topic_type = _COMMIT_IN_TRANSACTION.TxnOffsetCommitRequestTopic
        return _COMMIT_IN_TRANSACTION(
            group_id=GROUP_ID, generation_id_or_member_epoch=joined.generation,
            member_id=joined.member_id, group_instance_id=self.instance_id, **owner._asdict(),
            topics=[topic_type(name=self.topic, partitions=[
                topic_type.TxnOffsetCommitRequestPartition(**fields)
                for fields in commit_fields(joined.generation, after)
            ])],
        )  # fmt: skip


def commit_fields(generation: int, offsets: Mapping[int, int]) -> list[dict[str, object]]:
    """The fields of each partition of a commit."""
    return [
        {
            "partition_index": number,
            "committed_offset": offset,
            "committed_leader_epoch": generation,
            "committed_metadata": metadata_of(generation, offset),
        }
        for number, offset in offsets.items()
    ]


def read_committed_offsets(
    places: Routing, history: GroupHistory, topic: str, partitions: int
) -> Operation[dict[int, Committed] | None]:
    """The group's stable offsets, by partition; None while they are not stable, or not known.

    Partitions are named: of a group's all offsets, a first one that is pending is not among them.
    """
    floors, initialised = dict(history.floors), history.initialised
    topic_type = _OFFSETS.OffsetFetchRequestGroup.OffsetFetchRequestTopics
    wanted = topic_type(name=topic, partition_indexes=[*range(partitions)])
    group = _OFFSETS.OffsetFetchRequestGroup(group_id=GROUP_ID, topics=[wanted])
    node = yield from places.coordinator(GROUP, GROUP_ID)
    request = _OFFSETS(groups=[group], require_stable=True)
    answer = yield from ask_once(node, request, OFFSET_FETCH_VERSION_MAX)
    found = None if answer is None else answer.groups[0]
    parts = [part for topic in found.topics for part in topic.partitions] if found else []
    if found is None or {found.error_code, *(part.error_code for part in parts)} != {0}:
        places.forget()
        return None
    if not history.is_coordinator(node):
        places.forget()
        return None
    read = {
        p.partition_index: Committed(
            int(p.committed_offset), int(p.committed_leader_epoch), p.metadata
        )
        for p in parts
        if p.committed_offset != NOTHING_COMMITTED
    }
    history.on_stable_read(read, floors, initialised)
    return read


def describe(places: Routing) -> Operation[tuple[str, int] | None]:
    """The group's state and how many members it has; None when that is not known."""
    node = yield from places.coordinator(GROUP, GROUP_ID)
    request = _DESCRIBE(groups=[GROUP_ID], include_authorized_operations=False)
    answer = yield from ask_once(node, request)
    found = None if answer is None else answer.groups[0]
    if found is None or found.error_code:
        places.forget()
        return None
    return found.group_state, len(found.members)
