"""The transaction log as the only memory: any record, any compaction of it, any start from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.coordinators import STATE, A, B, World

from broker_sim.core.transaction import TransactionFilters
from broker_sim.core.transaction.metadata import TransactionEntry, TransactionMetadata
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import Record
from txnlog_kafka.wire.topic_partition import TopicPartition

E = ErrorCode
EXPIRING = {
    "transactional.id.expiration.ms": 60_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 30_000,
}
DATA = [A, B]
GONE = [TopicPartition("gone", 0), TopicPartition("", -1)]
RETRY_MS = 200
"""After it a marker that was refused is written."""
IDS = ["t", "u", "v", "w"]
EDGES_16 = st.sampled_from([-32768, -2, -1, 0, 1, 3, 32765, 32766, 32767])
EDGES_64 = st.sampled_from([-(2**63), -2, -1, 0, 1, 5, 2**62, 2**63 - 1])


# --------------------------------------------------------------------------- any record

METADATA = st.builds(
    TransactionMetadata,
    transactional_id=st.just("t"),
    producer_id=EDGES_64,
    producer_epoch=EDGES_16,
    timeout_ms=st.sampled_from([-(2**31), -1, 0, 60_000, 2**31 - 1]),
    state=st.sampled_from(TransactionState),
    last_update_ms=EDGES_64,
    previous_producer_id=EDGES_64,
    next_producer_id=EDGES_64,
    partitions=st.frozensets(st.sampled_from([*DATA, *GONE])),
    start_ms=EDGES_64,
    client_transaction_version=EDGES_16,
)


@settings(max_examples=150)
@given(METADATA)
def test_whatever_the_log_holds_requests_get_answers_and_the_transaction_ends(metadata) -> None:
    world = World(transactions=[metadata])
    held = ProducerIdResult(E.NONE, metadata.producer_id, metadata.producer_epoch)
    world.init(producer_id=held.producer_id, producer_epoch=held.producer_epoch)
    world.begin(held, DATA[0])
    for version in (0, 2):
        for commit in (True, False):
            world.end(held, commit=commit, version=version)
    world.advance(20_000)
    answers = [world.init().error for _ in range(3)]
    if answers[0] is E.NOT_COORDINATOR:
        return
    assert E.NONE in answers
    described = world.transactions.describe("t")
    assert (described.state, described.producer_id >= 0) == ("Empty", True)
    assert 0 <= described.producer_epoch < 32767


# --------------------------------------------------------------------------- any compaction


def latest_by_key(batches: list[bytes], *, keeps_tombstones: bool) -> list[bytes]:
    """Return the batches that a cleaner leaves: the last record of each key, at its own offset."""
    last: dict[bytes | None, int] = {}
    flat: list[tuple[int, int, Record]] = []
    for data in batches:
        header = records.parse_header(data)
        for delta, record in enumerate(records.decode_records(data, 0, header)):
            flat.append((header.base_offset + delta, header.leader_epoch, record))
            last[record.key] = flat[-1][0]
    kept = [
        (offset, epoch, record)
        for offset, epoch, record in flat
        if last[record.key] == offset and (keeps_tombstones or record.value is not None)
    ]
    cleaned = []
    for offset, epoch, record in kept:
        batch = bytearray(records.encode_batch([record]))
        records.stamp_offsets(batch, 0, base_offset=offset, leader_epoch=epoch)
        cleaned.append(bytes(batch))
    return cleaned


def known(world: World) -> dict[str, TransactionEntry]:
    """Return the coordinator's transactions, by transactional id."""
    return {
        name: entry
        for shard in world.transactions._manager.runtime.shards()
        for name, entry in shard.entries.items()
    }


def loaded(world: World, stored: list[bytes]) -> dict[str, Any]:
    """Start a coordinator on these batches; return its entries, its markers and its listing."""
    started = world.with_log(STATE, stored)
    entries = {
        name: (entry.committed, entry.pending, entry.unmarked, entry.started_monotonic_ms)
        for name, entry in known(started).items()
    }
    markers = [started.markers(place) for place in DATA]
    listing = started.transactions.list_transactions(world.now_ms, TransactionFilters())
    return {"entries": entries, "markers": markers, "listing": listing}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["init", "add", "commit", "abort", "refuse", "heal", "wait", "expire"]),
        st.sampled_from(IDS),
        st.sampled_from(DATA),
    ),
    max_size=40,
)


def play(steps: list[tuple[str, str, tuple[str, int]]]) -> World:
    """A broker on which these requests were made, good ones, of the present holders."""
    world = World(EXPIRING)
    held: dict[str, ProducerIdResult] = {}
    for kind, name, partition in steps:
        if kind == "init":
            answer = world.init(name)
            held[name] = answer if answer.error is E.NONE else held.get(name, answer)
        elif kind == "refuse":
            world.refuse(*partition, E.NOT_ENOUGH_REPLICAS)
        elif kind == "heal":
            world.refusals.clear()
        elif kind in ("wait", "expire"):
            world.advance(20_000 if kind == "wait" else 100_000)
        elif name in held:
            if kind == "add":
                world.begin(held[name], partition, name=name)
                continue
            answer = world.end(held[name], commit=kind == "commit", name=name)
            held[name] = answer if answer.error is E.NONE else held[name]
    return world


@pytest.mark.invariant(50, 71)
@settings(max_examples=200)
@given(STEPS, st.floats(0, 1), st.booleans())
def test_a_compacted_log_loads_to_the_same_state(steps, share, keeps_tombstones) -> None:
    """The whole log or its older part: a cleaner leaves the newest segment alone."""
    world = play(steps)
    stored = world.stored(STATE)
    cut = round(len(stored) * share)
    compacted = latest_by_key(stored[:cut], keeps_tombstones=keeps_tombstones) + stored[cut:]
    whole = loaded(world, stored)
    assert loaded(world, compacted) == whole
    assert loaded(world, latest_by_key(stored, keeps_tombstones=keeps_tombstones)) == whole


@pytest.mark.invariant(71)
@settings(max_examples=100)
@given(STEPS)
def test_a_load_knows_what_was_known_before_it(steps) -> None:
    world = play(steps)
    after = known(world.with_log(STATE, world.stored(STATE)))
    # A load writes the markers that are missing: here they are tried again, too.
    world.refusals.clear()
    world.advance(RETRY_MS)
    assert committed(after) == committed(known(world))


def committed(entries: dict[str, TransactionEntry]) -> dict[str, TransactionMetadata]:
    """Return the durable state of each transaction, without the time of its markers."""
    return {
        name: dataclasses.replace(entry.committed, last_producer_epoch=-1, last_update_ms=0)
        for name, entry in entries.items()
    }
