"""The coordinator's and the partition's answers to wrong requests, on both brokers.

Driven by hand, because no client sends these. Transaction version 1 is what a request of an older
version means (Produce < 12, EndTxn < 5), version 2 the newest of KIP-890.
"""

from __future__ import annotations

import uuid

import pytest
from support.brokers.probe import wait_for
from support.raw.raw import RawProducer, fetch_offsets
from support.raw.raw_admin import ZERO_ID, topic_id


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


def test_offsets_are_committed_by_the_id_of_their_topic(place, unique):
    """KIP-1319: a group that does not exist has an error of its own, too."""
    connection, topic, make = place
    group, nobody = unique("group"), unique("nobody")
    producer = make()
    of_topic, other = topic_id(connection, topic), uuid.uuid4()
    for name in (group, nobody):
        assert producer.find_coordinator(name, 0) == "NONE"
    for version, at, expected in (
        (6, of_topic, "NONE"),
        (6, other, "UNKNOWN_TOPIC_ID"),
        (6, ZERO_ID, "UNKNOWN_TOPIC_ID"),
        (5, other, "NONE"),
    ):
        error = producer.commit_offset(group, topic, 0, 3 + version, version=version, topic_id=at)
        assert (version, at, error) == (version, at, expected)
    assert producer.commit_offset(group, topic, 9, 1, version=6, topic_id=of_topic) == (
        "UNKNOWN_TOPIC_OR_PARTITION"
    )
    as_member = {"generation_id": 1, "member_id": "m", "topic_id": of_topic}
    for version, expected in ((5, "ILLEGAL_GENERATION"), (6, "GROUP_ID_NOT_FOUND")):
        error = producer.commit_offset(nobody, topic, 0, 1, version=version, **as_member)
        assert (version, error) == (version, expected)
    assert producer.end(commit=True, version=5) == "NONE"
    wait_for(lambda: fetch_offsets(connection, group), ("NONE", {(topic, 0): (8, "")}))


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
