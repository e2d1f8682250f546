"""Administrators describe, list, abort and end transactions, on both brokers (KIP-664)."""

from __future__ import annotations

import pytest
from support.brokers.hanging import (
    VERIFICATION_OFF,
    active_producers,
    list_transactions,
    plant_hanging_transaction,
    write_marker,
)
from support.brokers.probe import wait_for
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.raw.raw import Connection, RawProducer


def test_a_hanging_transaction_is_found_and_an_administrators_marker_ends_it(new_broker, unique):
    broker = new_broker(VERIFICATION_OFF)
    topic = create_topic(broker.bootstrap_servers, unique("hanging"), 2)
    planted = plant_hanging_transaction(broker, topic, 1, unique("txn"))
    identity = (planted.producer_id, planted.producer_epoch)
    with Connection(broker.port) as connection:
        after = RawProducer(connection)
        assert after.init() == "NONE"
        assert after.produce(topic, 1, "behind") == "NONE"
        assert values_of(read_topic(broker.bootstrap_servers, topic)) == []
        error, states = active_producers(connection, topic, 1)
        (state,) = [each for each in states if each.producer_id == planted.producer_id]
        assert (error, state.current_txn_start_offset) == ("NONE", planted.start_offset)
        assert (state.producer_epoch, state.coordinator_epoch) == (planted.producer_epoch, -1)
        # The coordinator knows the id, and of no transaction of it.
        assert list_transactions(connection) == ("NONE", [(planted.transactional_id, "Empty")])
        assert write_marker(connection, identity, (topic, 1)) == "NONE"
        wait_for(lambda: values_of(read_topic(broker.bootstrap_servers, topic)), ["behind"])
        # Without an open transaction a marker changes nothing, and is written.
        assert write_marker(connection, identity, (topic, 1)) == "NONE"


def test_markers_of_an_old_producer_or_coordinator_and_of_no_partition_are_refused(place):
    connection, topic, make = place
    producer = make()
    assert producer.produce(topic, 0, "a", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    assert producer.init() == "NONE"  # waits for the markers
    old = (producer.producer_id, 0)
    assert write_marker(connection, old, (topic, 0)) == "INVALID_PRODUCER_EPOCH"
    new = producer.identity
    assert write_marker(connection, new, (topic, 0)) == "TRANSACTION_COORDINATOR_FENCED"
    _, (state,) = active_producers(connection, topic, 0)
    later = state.coordinator_epoch + 7
    assert write_marker(connection, new, (topic, 0), coordinator_epoch=later) == "NONE"
    assert write_marker(connection, new, (topic, 0), coordinator_epoch=later - 1) == (
        "TRANSACTION_COORDINATOR_FENCED"
    )
    assert write_marker(connection, new, (topic, 2)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert write_marker(connection, new, ("no-such-topic", 0)) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_marker_of_version_2_needs_a_higher_epoch_unless_nothing_is_open(place):
    connection, topic, make = place
    producer = make()
    assert producer.produce(topic, 0, "a", version=12) == "NONE"
    same, higher = producer.identity, (producer.producer_id, producer.producer_epoch + 1)
    at = (topic, 0)
    refused = write_marker(connection, same, at, coordinator_epoch=0, transaction_version=2)
    assert refused == "INVALID_PRODUCER_EPOCH"
    for _ in range(2):
        written = write_marker(connection, higher, at, coordinator_epoch=0, transaction_version=2)
        assert written == "NONE"
    assert producer.end(commit=False, version=5) == "NONE"
    assert producer.init() == "NONE"


@pytest.mark.parametrize(("identity", "version"), [((-1, 0), None), ((7, -1), None), ((7, 0), -1)])
def test_a_marker_that_says_not_whose_it_is_or_by_which_rule_is_not_written(
    place, identity, version
):
    connection, topic, _ = place
    at, end = (topic, 0), RawProducer(connection)
    assert write_marker(
        connection, identity, at, coordinator_epoch=0, transaction_version=version
    ) == ("UNKNOWN_SERVER_ERROR")
    assert (end.init(), end.produce(topic, 0, "first")) == ("NONE", "NONE")
    assert end.last_offset == 0


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_a_client_cannot_add_a_partition_of_a_coordinator_to_its_transaction(place, topic):
    _, _, make = place
    producer = make()
    assert producer.add_partitions(topic, 0) == "TOPIC_AUTHORIZATION_FAILED"
    assert producer.end(commit=True) == "INVALID_TXN_STATE"


@pytest.mark.no_kill("what moves is in no broker's list for a moment")
def test_transactions_are_listed_by_state_producer_duration_and_pattern(place, unique):
    connection, topic, make = place
    names = {word: unique(f"list-{word}") for word in ("empty", "open", "done")}
    empty, running, done = (make(f"list-{word}") for word in ("empty", "open", "done"))
    assert running.add_partitions(topic, 0) == "NONE"
    assert done.end(commit=False, version=5) == "NONE"
    assert done.init(resume=True) == "NONE"  # waits for the markers
    assert done.end(commit=False, version=5) == "NONE"
    ids = [each.producer_id for each in (empty, running, done)]

    def listed(**filters) -> tuple:
        return list_transactions(connection, producer_id_filters=ids, **filters)

    states = {"empty": "Empty", "open": "Ongoing", "done": "CompleteAbort"}
    everything = sorted((names[word], state) for word, state in states.items())
    wait_for(listed, ("NONE", everything))
    the_open = (names["open"], "Ongoing")
    assert listed(state_filters=["Ongoing"]) == ("NONE", [the_open])
    assert listed(state_filters=["Nonsense"]) == ("NONE", [])
    assert list_transactions(connection, producer_id_filters=ids[1:2]) == ("NONE", [the_open])
    # Nothing runs for an hour; an id without a transaction counts from the epoch on, in Kafka too.
    assert listed(duration_filter=3_600_000) == ("NONE", [(names["empty"], "Empty")])
    assert listed(pattern=".*-open-.*") == ("NONE", [the_open])
    assert listed(pattern="list-(open|none)-[0-9a-f]{8}") == ("NONE", [the_open])
    assert listed(pattern="list-open") == ("NONE", [])
    assert listed(pattern="") == ("NONE", everything)
    assert listed(pattern="(") == ("INVALID_REGULAR_EXPRESSION", [])
    assert listed(pattern="a**") == ("INVALID_REGULAR_EXPRESSION", [])


def test_producers_of_an_unknown_or_illegal_topic_cannot_be_described(place):
    connection, topic, _ = place
    wait_for(lambda: active_producers(connection, topic, 0), ("NONE", []))
    assert active_producers(connection, topic, 2) == ("UNKNOWN_TOPIC_OR_PARTITION", [])
    assert active_producers(connection, "no-such-topic", 0) == ("UNKNOWN_TOPIC_OR_PARTITION", [])
    assert active_producers(connection, "not/a/topic", 0) == ("INVALID_TOPIC_EXCEPTION", [])
