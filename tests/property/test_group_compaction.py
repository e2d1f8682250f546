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
from support.core.coordinators import MemoryHost, MemoryLog, World

from broker_sim.core.coordinator.partition_writer import PartitionMarker
from broker_sim.core.group.requests import (
    LeavingMember,
    OffsetCommit,
    OffsetToCommit,
    TxnOffsetCommit,
)
from txnlog_kafka.wire import records
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.records import MarkerType, Record, TransactionMarker
from txnlog_kafka.wire.topics import TopicPartition

E = ErrorCode
DAY_MS = 86_400_000
OFFSETS = ("__consumer_offsets", 0)
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
    """What happened to the groups of one broker."""

    world: World
    number: int = 0

    def run(self, step: Step) -> None:
        """One step; one that is refused changes nothing, which is fine."""
        kind, group, topic, producer_id = step
        self.number += 1
        to_commit = OffsetToCommit(topic, 0, self.number, self.number % 5, f"m{self.number}")
        groups = self.world.groups
        if kind == "commit":
            request = OffsetCommit(group_id=group, offsets=(to_commit,))
            self.world.ask(groups.offset_commit, request)
        elif kind == "pending":
            self.world.ask(
                groups.txn_offset_commit,
                TxnOffsetCommit(
                    group_id=group,
                    producer_id=producer_id,
                    producer_epoch=0,
                    offsets=(to_commit,),
                ),
            )
        elif kind in ("decide", "abort"):
            decide(self.world, producer_id, commits=kind == "decide")
        elif kind == "delete offset":
            self.world.ask(groups.offset_delete, group, [(topic, 0)])
        elif kind == "delete group":
            self.world.ask(groups.delete_groups, [group])
        elif kind == "live":
            self.live(group)
        elif kind == "leave":
            members = groups.describe_group(group).members
            leaving = [LeavingMember(member.member_id) for member in members]
            self.world.step(groups.leave_group, group, leaving)
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
        world.step(world.groups.on_timer, key)


def decide(world: World, producer_id: int, *, commits: bool) -> None:
    """A marker."""
    kind = MarkerType.COMMIT if commits else MarkerType.ABORT
    marker = TransactionMarker(producer_id, 0, kind, 0)
    sent = PartitionMarker(TopicPartition(*OFFSETS), marker, 0)
    world.ask(world.host.append_marker, sent)


def compacted(log: MemoryLog, *, drops_tombstones: bool) -> MemoryLog:
    """The log as a cleaner leaves it."""
    outcome = outcomes(log)
    end = min((offset for offset, decided in outcome.items() if decided is None), default=2**62)
    latest: dict[bytes | None, int] = {}
    for header, batch in log.batches(0):
        if not header.is_control:
            for record in records.decode_records(batch, 0, header):
                offset = record.record_offset
                if offset < end and outcome.get(offset, True):
                    latest[record.key] = offset
    clean = MemoryLog(log.path, leader_epoch=1)
    for header, batch in log.batches(0):
        if header.is_control:
            keep(clean, batch, header.base_offset)
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
                keep(clean, one, offset)
    clean.next_offset = log.next_offset
    return clean


def outcomes(log: MemoryLog) -> dict[int, bool | None]:
    """Of each transactional record: committed, aborted, or None while it is undecided."""
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


def keep(log: MemoryLog, batch: bytes, base_offset: int) -> None:
    """Append at its old place."""
    log.next_offset = base_offset
    log.add(batch)


def loaded(log: MemoryLog, now_ms: int) -> World:
    """A new coordinator on this log."""
    host = MemoryHost()
    host.logs[OFFSETS] = log
    return World(host=host, disk=[], now_ms=now_ms)


def state(world: World) -> dict[str, Any]:
    """All that requests can see. A group of nothing but its name is none: it is nowhere stored."""
    seen = {}
    for group in GROUPS:
        plain = world.groups.offset_fetch(group, None, require_stable=False).offsets
        named = {topic: [0] for topic in TOPICS}
        stable = world.groups.offset_fetch(group, named, require_stable=True).offsets
        described = world.groups.describe_group(group)
        unstable = [fetched.topic for fetched in stable if fetched.error is not E.NONE]
        if described.protocol_type or plain or unstable:
            seen[group] = (described.state, described.members, plain, unstable)
    return seen


@pytest.mark.invariant(50)
@settings(max_examples=500, deadline=None)
@given(STEPS, st.booleans(), st.lists(st.booleans(), min_size=3, max_size=3))
def test_a_compacted_offsets_log_loads_to_the_state_of_the_whole_log(
    steps: list[Step], drops_tombstones: bool, decisions: list[bool]
) -> None:
    story = Story(World())
    for step in steps:
        story.run(step)
    log = story.world.host.logs[OFFSETS]
    now_ms = story.world.now_ms
    whole = story.world.crashed()
    small = loaded(compacted(log, drops_tombstones=drops_tombstones), now_ms)
    assert state(small) == state(whole)
    for producer_id, commits in zip(PRODUCERS, decisions, strict=True):
        for world in (whole, small):
            decide(world, producer_id, commits=commits)
        assert state(small) == state(whole)
