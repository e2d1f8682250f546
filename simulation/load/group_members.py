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
from typing import NamedTuple

from simulation.checkers.group_history import (
    NOTHING_COMMITTED,
    Committed,
    GroupHistory,
    metadata_of,
)
from simulation.hosts.scheduler import START_WALL_MS
from simulation.load.reader import OFFSET_FETCH_VERSION_MAX, read_partition
from simulation.load.routing import GROUP, READ_TIMEOUT_MS, RETRY_MS, TRANSACTION, Routing, Where
from txnlog_kafka.operations.effects import Call, Calls, Operation, Reply, Sleep
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import Record, encode_batch

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
ADD_PARTITIONS_VERSION_MAX, ADD_OFFSETS_VERSION_MAX = 3, 3
COMMIT_IN_TRANSACTION_VERSION_MAX, END_TXN_VERSION_MAX, PRODUCE_VERSION_MAX = 4, 4, 11
"""Clients from before epochs rose with every transaction, see `neighbour`."""

_JOIN = APIS[ApiKey.JOIN_GROUP].request
_SYNC = APIS[ApiKey.SYNC_GROUP].request
_HEARTBEAT = APIS[ApiKey.HEARTBEAT].request
_LEAVE = APIS[ApiKey.LEAVE_GROUP].request
_COMMIT = APIS[ApiKey.OFFSET_COMMIT].request
_OFFSETS = APIS[ApiKey.OFFSET_FETCH].request
_DESCRIBE = APIS[ApiKey.DESCRIBE_GROUPS].request
_INIT = APIS[ApiKey.INIT_PRODUCER_ID].request
_ADD = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].request
_ADD_OFFSETS = APIS[ApiKey.ADD_OFFSETS_TO_TXN].request
_COMMIT_IN_TRANSACTION = APIS[ApiKey.TXN_OFFSET_COMMIT].request
_PRODUCE = APIS[ApiKey.PRODUCE].request
_END = APIS[ApiKey.END_TXN].request

_ANEW = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
"""The member id is worth nothing any more."""
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

    def live(self) -> Operation[None]:
        """Join, read and commit, until it is over; then leave."""
        yield Sleep(self.delay_ms)
        while not self.is_over():
            joined = yield from self._join()
            if joined is None:
                yield Sleep(RETRY_MS)
            else:
                yield from self._work(joined)
        leaving = _LEAVE.MemberIdentity(
            member_id=self._member_id, group_instance_id=self.instance_id, reason=None
        )
        yield from self._once(_LEAVE(group_id=GROUP_ID, members=[leaving]))

    # ------------------------------------------------------------------ membership

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

    def _heartbeat(self, joined: Joined) -> Operation[bool]:
        """Send a heartbeat; True if the member still belongs to its generation."""
        request = _HEARTBEAT(
            group_id=GROUP_ID, generation_id=joined.generation, member_id=joined.member_id,
            group_instance_id=self.instance_id,
        )  # fmt: skip
        answer = yield from self._once(request)
        return answer is not None and self._is_right(answer.error_code)

    def _is_right(self, error: int) -> bool:
        if error in _ANEW:
            self._member_id = ""
        elif error:
            self.places.forget()
        return error == ErrorCode.NONE

    # ------------------------------------------------------------------ work

    def _work(self, joined: Joined) -> Operation[None]:
        """Until the generation is over, or a commit has failed."""
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
            if not (yield from self._heartbeat(joined)):
                return
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
        errors = {part.error_code for topic in answer.topics for part in topic.partitions}
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
        outcome = yield Calls((Call(node, request, timeout_ms, version_max),))
        answer = outcome[0] if isinstance(outcome, tuple) else None
        if isinstance(answer, Reply):
            return answer.message
        self.places.forget()
        return None


@dataclass(slots=True)
class Copier(Member):
    """A member that copies what it reads, each record once (KIP-447)."""

    target: str = ""
    """The topic of the copies; it has one partition."""
    _owner: Message | None = None
    _sequence: int = 0
    _read_last: list[str] = field(default_factory=list)

    def _begin(self) -> Operation[bool]:
        request = _INIT(
            transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        answer = yield from self._once(request, where=self._transaction_coordinator)
        self._sequence, self._owner = 0, answer
        self._read_last.clear()
        if answer is not None and answer.error_code:
            self.places.forget()
        if answer is None or answer.error_code:
            return False
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
        ids = {
            "transactional_id": self.name,
            "producer_id": owner.producer_id,
            "producer_epoch": owner.producer_epoch,
        }
        copies = self._batch(self.history.on_copy(self.name, after), names, owner)
        newest = self.history.on_commit_sent(joined.generation, after)
        steps = (
            (self._add(owner), ADD_PARTITIONS_VERSION_MAX, self._transaction_coordinator),
            (copies, PRODUCE_VERSION_MAX, partial(self.places.leader, self.target, 0)),
            (_ADD_OFFSETS(group_id=GROUP_ID, **ids), ADD_OFFSETS_VERSION_MAX,
             self._transaction_coordinator),
            (self._offsets(joined, after, ids), COMMIT_IN_TRANSACTION_VERSION_MAX,
             self._coordinator),
            (_END(committed=True, **ids), END_TXN_VERSION_MAX, self._transaction_coordinator),
        )  # fmt: skip
        for request, version_max, where in steps:
            yield from self._moment()
            answer = yield from self._once(request, where=where, version_max=version_max)
            if answer is None or _errors_of(answer) != {ErrorCode.NONE}:
                return False
            if isinstance(request, _COMMIT_IN_TRANSACTION):
                self.history.on_committed(joined.generation, newest)
        self._sequence += len(names)
        return True

    def _add(self, owner: Message) -> Message:
        topic_type = _ADD.AddPartitionsToTxnTopic
        return _ADD(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=owner.producer_id,
            v3_and_below_producer_epoch=owner.producer_epoch,
            v3_and_below_topics=[topic_type(name=self.target, partitions=[0])],
        )

    def _batch(self, key: bytes, names: Sequence[str], owner: Message) -> Message:
        batch = encode_batch(
            [Record(key, name.encode(), START_WALL_MS) for name in names],
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        topic_type = _PRODUCE.TopicProduceData
        part = topic_type.PartitionProduceData(index=0, records=batch)
        return _PRODUCE(
            transactional_id=self.name, acks=-1, timeout_ms=READ_TIMEOUT_MS,
            topic_data=[topic_type(name=self.target, partition_data=[part])],
        )  # fmt: skip

    def _offsets(
        self, joined: Joined, after: Mapping[int, int], ids: Mapping[str, object]
    ) -> Message:
        topic_type = _COMMIT_IN_TRANSACTION.TxnOffsetCommitRequestTopic
        return _COMMIT_IN_TRANSACTION(
            group_id=GROUP_ID, generation_id_or_member_epoch=joined.generation,
            member_id=joined.member_id, group_instance_id=self.instance_id, **ids,
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


def _errors_of(answer: Message) -> set[int]:
    """Return all error codes of a transaction's answers, wherever they are."""
    parts = [
        *(p for t in getattr(answer, "responses", ()) for p in t.partition_responses),
        *(p for t in getattr(answer, "topics", ()) for p in t.partitions),
    ]
    added = getattr(answer, "results_by_topic_v3_and_below", ())
    codes = {part.partition_error_code for topic in added for part in topic.results_by_partition}
    codes |= {part.error_code for part in parts} | {getattr(answer, "error_code", None) or 0}
    return codes


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
    outcome = yield Calls((Call(node, request, READ_TIMEOUT_MS, OFFSET_FETCH_VERSION_MAX),))
    answer = outcome[0] if isinstance(outcome, tuple) else None
    found = answer.message.groups[0] if isinstance(answer, Reply) else None
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
    outcome = yield Calls((Call(node, request, READ_TIMEOUT_MS),))
    answer = outcome[0] if isinstance(outcome, tuple) else None
    if not isinstance(answer, Reply) or answer.message.groups[0].error_code:
        places.forget()
        return None
    found = answer.message.groups[0]
    return found.group_state, len(found.members)
