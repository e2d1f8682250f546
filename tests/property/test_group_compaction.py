"""The offsets log after compaction loads to the same state as the whole log.

The cleaner here is a naive one, kept to Kafka's rules: of each key the last record stays, records
of aborted transactions count for nothing, nothing from the first undecided transaction on is
touched, tombstones may go. Undecided transactions are decided after the load, which tells whether
what they left behind is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.coordinators import OFFSETS, World

from broker_sim.core.group.requests import (
    LeavingMember,
    OffsetCommit,
    OffsetToCommit,
    TxnOffsetCommit,
)
from broker_sim.core.log import PartitionLog
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, Record

E = ErrorCode
DAY_MS = 86_400_000
GROUPS = ("g", "h")
TOPICS = ("x", "y")
PRODUCERS = (1, 2, 3)
Step = tuple[str, str, str, int]
"""(kind, group, topic, producer id)"""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["commit"] * 4
            + ["pending"] * 5
            + ["decide"] * 3
            + ["abort"] * 2
            + ["delete offset", "delete group", "live", "leave", "expire"]
        ),
        st.sampled_from(GROUPS),
        st.sampled_from(TOPICS),
        st.sampled_from(PRODUCERS),
    ),
    max_size=40,
)


@dataclass
class Story:
    """A history of the groups of one broker."""

    world: World
    number: int = 0

    def run(self, step: Step) -> None:
        """Carry out one step; a refused step changes nothing, which is allowed."""
        kind, group, topic, producer_id = step
        self.number += 1
        to_commit = OffsetToCommit(topic, 0, self.number, self.number % 5, f"m{self.number}")
        groups = self.world.groups
        if kind == "commit":
            request = OffsetCommit(group_id=group, offsets=(to_commit,))
            self.world.tell(groups.offset_commit, request)
        elif kind == "pending":
            self.world.tell(
                groups.txn_offset_commit,
                TxnOffsetCommit(
                    group_id=group,
                    producer_id=producer_id,
                    producer_epoch=0,
                    offsets=(to_commit,),
                ),
            )
        elif kind in ("decide", "abort"):
            self.world.mark(commit=kind == "decide", producer_id=producer_id)
        elif kind == "delete offset":
            self.world.tell(groups.offset_delete, group, [(topic, 0)])
        elif kind == "delete group":
            self.world.tell(groups.delete_groups, [group])
        elif kind == "live":
            self.live(group)
        elif kind == "leave":
            members = groups.describe_group(group).members
            leaving = [LeavingMember(member.member_id) for member in members]
            self.world.tell(groups.leave_group, group, leaving)
        else:
            age(self.world)

    def live(self, group: str) -> None:
        """A member of the group gets an assignment, which is stored."""
        joining = self.world.join(group, group_instance_id="i", session_timeout_ms=1_800_000)
        self.world.advance(3_000)
        if joining and joining[0].error is E.NONE:
            joined = joining[0]
            self.world.sync(
                group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id="i",
                assignments={joined.member_id: b"part%d" % self.number},
            )


def age(world: World) -> None:
    """Nine days pass at a stroke: sessions end, then one sweep of expired offsets."""
    world.now_ms += 9 * DAY_MS
    world.monotonic_ms += 9 * DAY_MS
    for key in sorted(world.timers, reverse=True):
        world.call(world.groups.on_timer, key)


def compacted(log: PartitionLog, *, drops_tombstones: bool) -> list[bytes]:
    """The batches of the log as a cleaner leaves them."""
    outcome = outcomes(log)
    end = min((offset for offset, decided in outcome.items() if decided is None), default=2**62)
    latest: dict[bytes | None, int] = {}
    for header, batch in log.batches(0):
        if not header.is_control:
            for record in records.decode_records(batch, 0, header):
                offset = record.record_offset
                if offset < end and outcome.get(offset, True):
                    latest[record.key] = offset
    clean = []
    for header, batch in log.batches(0):
        if header.is_control:
            clean.append(bytes(batch))
            continue
        for record in records.decode_records(batch, 0, header):
            offset = record.record_offset
            is_last = latest.get(record.key) == offset
            is_kept = offset >= end or (is_last and not (drops_tombstones and not record.value))
            if is_kept:
                one = records.encode_batch(
                    [Record(record.key, record.value, record.timestamp)],
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    base_sequence=header.base_sequence,
                    transactional=header.is_transactional,
                )
                clean.append(stamped(one, offset, header.leader_epoch))
    return clean


def stamped(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch with this base offset and leader epoch."""
    data = bytearray(batch)
    records.stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(data)


def outcomes(log: PartitionLog) -> dict[int, bool | None]:
    """Return the outcome of each transactional record: committed, aborted, or None if undecided."""
    outcome: dict[int, bool | None] = {}
    undecided: dict[int, list[int]] = {}
    for header, batch in log.batches(0):
        if header.is_control:
            marker = records.decode_marker(batch, 0, header)
            for offset in undecided.pop(header.producer_id, ()):
                outcome[offset] = marker.marker_type is MarkerType.COMMIT
        elif header.is_transactional:
            for record in records.decode_records(batch, 0, header):
                outcome[record.record_offset] = None
                undecided.setdefault(header.producer_id, []).append(record.record_offset)
    return outcome


def state(world: World) -> dict[str, Any]:
    """Return the state that requests can see, without groups that have only a name: no log has
    those."""
    seen = {}
    for group in GROUPS:
        plain = world.offsets(group, stable=False)
        named = {topic: [0] for topic in TOPICS}
        stable = world.groups.offset_fetch(group, named, require_stable=True).offsets
        described = world.groups.describe_group(group)
        unstable = [fetched.topic for fetched in stable if fetched.error is not E.NONE]
        if described.protocol_type or plain or unstable:
            seen[group] = (described.state, described.members, plain, unstable)
    return seen


@pytest.mark.invariant(50)
@settings(max_examples=200)
@given(STEPS, st.booleans(), st.lists(st.booleans(), min_size=3, max_size=3))
def test_a_compacted_offsets_log_loads_to_the_state_of_the_whole_log(
    steps: list[Step], drops_tombstones: bool, decisions: list[bool]
) -> None:
    story = Story(World())
    for step in steps:
        story.run(step)
    log = story.world.log(*OFFSETS)
    whole = story.world.with_log(OFFSETS, story.world.stored(OFFSETS))
    small = story.world.with_log(OFFSETS, compacted(log, drops_tombstones=drops_tombstones))
    assert state(small) == state(whole)
    for producer_id, commits in zip(PRODUCERS, decisions, strict=True):
        for world in (whole, small):
            world.mark(commit=commits, producer_id=producer_id)
        assert state(small) == state(whole)
