"""The coordinator's and the partition's answers to wrong requests, on both brokers.

Driven by hand, because no client sends these. Transaction version 1 is what a request of an older
version means (Produce < 12, EndTxn < 5), version 2 the newest of KIP-890.
"""

from __future__ import annotations

import pytest
from support.brokers.probe import wait_for
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.raw.raw import RawProducer, fetch_offsets
from support.raw.routed import connect

AGAIN = pytest.mark.no_kill("InitProducerId that is sent again raises the epoch again")


@pytest.fixture
def place(broker, unique):
    """(connection, topic with 2 partitions, function making a producer of a transactional id)."""
    topic = create_topic(broker.bootstrap_servers, unique("raw"), 2)
    with connect(broker) as connection:

        def make(name: str = "txn", *, init: bool = True, **settings) -> RawProducer:
            made = RawProducer(connection, unique(name), **settings)
            assert made.find_coordinator() == "NONE"
            if init:
                assert made.init() == "NONE"
            return made

        yield connection, topic, make


@pytest.fixture
def committed(bootstrap, place):
    """What read_committed consumers see in the topic now."""
    _, topic, _ = place
    return lambda: values_of(read_topic(bootstrap, topic))


@AGAIN
def test_each_init_bumps_the_epoch_of_one_producer_id(place):
    _, _, make = place
    producer = make()
    first = producer.identity
    assert producer.init() == "NONE"
    assert producer.identity == (first[0], first[1] + 1)


@AGAIN
def test_init_with_the_current_epoch_resumes_and_with_an_old_one_is_fenced(place):
    _, _, make = place
    producer, old = make(), make()
    assert producer.producer_id == old.producer_id
    assert producer.init(resume=True) == "PRODUCER_FENCED"
    assert old.init(resume=True) == "NONE"


@pytest.mark.parametrize(("timeout_ms", "error"), [
    (0, "INVALID_TRANSACTION_TIMEOUT"),
    (-1, "INVALID_TRANSACTION_TIMEOUT"),
    (900_001, "INVALID_TRANSACTION_TIMEOUT"),
    (900_000, "NONE"),
])  # fmt: skip
def test_the_transaction_timeout_has_bounds(place, timeout_ms, error):
    _, _, make = place
    assert make(init=False).init(timeout_ms) == error


def test_an_empty_transactional_id_is_an_invalid_request(place):
    connection, _, _ = place
    assert RawProducer(connection, "").init() == "INVALID_REQUEST"


def test_idempotent_producers_get_new_producer_ids_with_epoch_0(place):
    connection, _, _ = place
    first, second = RawProducer(connection), RawProducer(connection)
    assert (first.init(), second.init()) == ("NONE", "NONE")
    assert first.producer_id != second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)


def test_a_stranger_and_a_zombie_cannot_add_partitions_or_end(place):
    _, topic, make = place
    producer = make()
    stranger = make(init=False)
    stranger.producer_id, stranger.producer_epoch = producer.producer_id + 10**6, 0
    assert stranger.add_partitions(topic, 0) == "INVALID_PRODUCER_ID_MAPPING"
    assert stranger.end(commit=True) == "INVALID_PRODUCER_ID_MAPPING"
    assert stranger.add_offsets("group") == "INVALID_PRODUCER_ID_MAPPING"
    zombie = make(init=False)
    zombie.producer_id, zombie.producer_epoch = producer.identity
    assert producer.init() == "NONE"
    assert zombie.add_partitions(topic, 0) == "PRODUCER_FENCED"
    assert zombie.end(commit=True) == "PRODUCER_FENCED"
    assert zombie.end(commit=False) == "PRODUCER_FENCED"
    assert zombie.add_offsets("group") == "PRODUCER_FENCED"


def test_end_txn_version_1_in_each_state(place, committed):
    _, topic, make = place
    producer = make()
    assert producer.end(commit=True) == "INVALID_TXN_STATE"
    assert producer.end(commit=False) == "INVALID_TXN_STATE"
    assert producer.add_partitions(topic, 0) == "NONE"
    assert producer.produce(topic, 0, "kept") == "NONE"
    assert producer.end(commit=True) == "NONE"
    assert producer.end(commit=True) == "NONE"
    assert producer.end(commit=False) == "INVALID_TXN_STATE"
    assert producer.add_partitions(topic, 0) == "NONE"
    assert producer.produce(topic, 0, "dropped") == "NONE"
    assert producer.end(commit=False) == "NONE"
    assert producer.end(commit=False) == "NONE"
    assert producer.end(commit=True) == "INVALID_TXN_STATE"
    wait_for(committed, ["kept"])


def test_end_txn_version_2_bumps_the_epoch_and_knows_its_retry(place, committed):
    _, topic, make = place
    producer = make()
    before = producer.identity
    assert producer.produce(topic, 0, "kept", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    after = producer.identity
    assert after == (before[0], before[1] + 1)
    # The answer was lost: the same request again is answered with the same identity.
    producer.producer_id, producer.producer_epoch = before
    assert producer.end(commit=True, version=5) == "NONE"
    assert producer.identity == after
    # A commit of nothing, and the old epoch after the next transaction began.
    assert producer.end(commit=True, version=5) == "INVALID_TXN_STATE"
    assert producer.produce(topic, 0, "next", version=12) == "NONE"
    zombie = make(init=False)
    zombie.producer_id, zombie.producer_epoch = before
    assert zombie.end(commit=True, version=5) == "PRODUCER_FENCED"
    assert zombie.end(commit=False, version=5) == "PRODUCER_FENCED"
    assert producer.end(commit=True, version=5) == "NONE"
    wait_for(committed, ["kept", "next"])


def test_end_txn_version_2_aborts_nothing_with_a_bump(place):
    _, _, make = place
    producer = make()
    before = producer.identity
    assert producer.end(commit=False, version=5) == "NONE"
    assert producer.identity == (before[0], before[1] + 1)


def test_a_late_produce_of_an_ended_transaction_is_refused_in_version_2(place, committed):
    _, topic, make = place
    producer = make()
    before = producer.identity
    assert producer.produce(topic, 0, "a", version=12) == "NONE"
    assert producer.end(commit=False, version=5) == "NONE"
    # EndTxn is answered before the markers are written; this waits for them.
    assert producer.init() == "NONE"
    late = make(init=False)
    late.producer_id, late.producer_epoch = before
    assert late.produce(topic, 0, "late", sequence=1, version=12) == "INVALID_PRODUCER_EPOCH"
    assert late.produce(topic, 1, "late", version=12) in (
        "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED",
    )  # fmt: skip
    assert committed() == []


def test_a_produce_outside_of_a_transaction_is_refused_in_version_1(place, committed):
    _, topic, make = place
    producer = make()
    assert producer.produce(topic, 0, "stray") == "TRANSACTION_ABORTABLE"
    assert producer.produce(topic, 0, "stray", version=10) == "INVALID_TXN_STATE"
    assert producer.add_partitions(topic, 1) == "NONE"
    assert producer.produce(topic, 0, "stray") == "TRANSACTION_ABORTABLE"
    assert committed() == []


def test_duplicates_gaps_and_old_epochs_of_an_idempotent_producer(place, committed):
    connection, topic, _ = place
    producer = RawProducer(connection)
    assert producer.init() == "NONE"
    for number in range(6):
        assert producer.produce(topic, 0, f"{number}a", f"{number}b") == "NONE"
    assert producer.produce(topic, 0, "5a", "5b", sequence=10) == "NONE"
    assert producer.last_offset == 10
    assert producer.produce(topic, 0, "1a", "1b", sequence=2) == "NONE"
    assert producer.last_offset == 2
    # Only five batches are remembered.
    assert producer.produce(topic, 0, "0a", "0b", sequence=0) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert producer.produce(topic, 0, "x", sequence=13) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    producer.producer_epoch += 1
    assert producer.produce(topic, 0, "x", sequence=12) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert producer.produce(topic, 0, "new", sequence=0) == "NONE"
    producer.producer_epoch -= 1
    assert producer.produce(topic, 0, "x", sequence=12) == "INVALID_PRODUCER_EPOCH"
    assert len(committed()) == 13


def test_a_sequence_wraps_from_2_31_minus_1_to_0(place):
    connection, topic, _ = place
    producer = RawProducer(connection)
    assert producer.init() == "NONE"
    top = 2**31 - 1
    assert producer.produce(topic, 0, "a", sequence=top - 1) == "NONE"
    assert producer.produce(topic, 0, "b", "c", sequence=top) == "NONE"
    assert producer.produce(topic, 0, "d", sequence=0) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert producer.produce(topic, 0, "d", sequence=1) == "NONE"
    assert producer.produce(topic, 0, "b", "c", sequence=top) == "NONE"
    assert producer.last_offset == 1


def test_a_plain_batch_inside_of_an_open_transaction_is_refused(place):
    connection, topic, make = place
    producer = make()
    assert producer.add_partitions(topic, 0) == "NONE"
    assert producer.produce(topic, 0, "in") == "NONE"
    plain = RawProducer(connection)
    plain.producer_id, plain.producer_epoch = producer.identity
    assert plain.produce(topic, 0, "out", sequence=1) == "INVALID_TXN_STATE"
    assert producer.end(commit=False) == "NONE"


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_of_a_transaction_are_unstable_until_its_end(place, unique, version):
    connection, topic, make = place
    group = unique("group")
    producer = make()
    assert producer.find_coordinator(group, 0) == "NONE"
    produce, offset, end = (11, 4, 4) if version == 1 else (12, 5, 5)
    for committed_offset, commit in ((5, True), (7, False), (9, True)):
        before = fetch_offsets(connection, group)
        if version == 1:
            assert producer.add_partitions(topic, 0) == "NONE"
            assert producer.add_offsets(group) == "NONE"
        assert producer.produce(topic, 0, "x", version=produce) == "NONE"
        metadata = f"batch {committed_offset} ✓"
        assert producer.commit_offset(
            group, topic, 0, committed_offset, metadata=metadata, version=offset
        ) == "NONE"  # fmt: skip
        error, _ = fetch_offsets(connection, group)
        assert error in ("UNSTABLE_OFFSET_COMMIT", "NONE")
        assert fetch_offsets(connection, group, require_stable=False)[1] == before[1]
        assert producer.end(commit=commit, version=end) == "NONE"
        expected = {(topic, 0): (committed_offset, metadata)} if commit else before[1]
        wait_for(lambda: fetch_offsets(connection, group), ("NONE", expected))


def test_offset_commits_check_epoch_metadata_size_and_generation(place, unique):
    _, topic, make = place
    group = unique("group")
    producer = make()
    assert producer.find_coordinator(group, 0) == "NONE"
    assert producer.add_offsets(group) == "NONE"
    too_large = "x" * 4097
    assert producer.commit_offset(group, topic, 0, 1, metadata=too_large) == (
        "OFFSET_METADATA_TOO_LARGE"
    )
    assert producer.commit_offset(group, topic, 0, 1, metadata="x" * 4096) == "NONE"
    assert producer.commit_offset(group, topic, 0, 1, generation_id=3, member_id="m") in (
        "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION",
    )  # fmt: skip
    assert producer.end(commit=True) == "NONE"
    zombie = make(init=False)
    zombie.producer_id, zombie.producer_epoch = producer.identity
    assert producer.init() == "NONE"
    assert zombie.commit_offset(group, topic, 0, 9) in (
        "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE",
    )  # fmt: skip


def test_init_aborts_the_open_transaction_and_its_pending_offsets(place, unique, committed):
    connection, topic, make = place
    group = unique("group")
    producer = make()
    assert producer.find_coordinator(group, 0) == "NONE"
    assert producer.produce(topic, 1, "lost", version=12) == "NONE"
    assert producer.commit_offset(group, topic, 1, 1, version=5) == "NONE"
    heir = make()
    assert heir.producer_id == producer.producer_id
    assert heir.producer_epoch > producer.producer_epoch
    assert fetch_offsets(connection, group) == ("NONE", {})
    assert committed() == []
    assert producer.end(commit=True, version=5) == "PRODUCER_FENCED"
    assert producer.produce(topic, 1, "late", version=12) == "INVALID_PRODUCER_EPOCH"
