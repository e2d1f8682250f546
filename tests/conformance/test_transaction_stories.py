"""Delayed and lost requests of transactions, the field bugs of Kafka's users, on both brokers.

A client that waits for its answers never gets there; a network that delays does. Each story is
told in both transaction versions: version 1 knows a producer by its epoch alone, and is safe only
as long as a client asks for a new one after each doubt; version 2 has a new epoch with each
transaction (KIP-890).
"""

from __future__ import annotations

from functools import partial

import pytest
from support.brokers.hanging import active_producers, list_transactions
from support.brokers.prepared import PREPARED
from support.brokers.probe import wait_for
from support.raw.raw import RawProducer

V1, V2 = 11, 12
"""The version of Produce that speaks for a transaction version."""
END = {V1: 4, V2: 5}


def delayed(producer: RawProducer) -> RawProducer:
    """The producer as it was when it sent a request that is still on its way."""
    return RawProducer(
        producer.connection, producer.transactional_id, *producer.identity, retries=False
    )


def begin(producer: RawProducer, topic: str, partition: int, version: int) -> None:
    """Version 1 adds a partition before it writes there."""
    if version == V1:
        assert producer.add_partitions(topic, partition) == "NONE"


def settle(producer: RawProducer) -> None:
    """Wait for the markers of the end before: EndTxn is answered without them."""
    filters = {"state_filters": [*PREPARED], "producer_id_filters": [producer.producer_id]}
    wait_for(lambda: list_transactions(producer.connection, **filters), ("NONE", []))


@pytest.mark.parametrize("version", [V1, V2])
def test_a_produce_that_comes_after_the_abort_leaves_no_hanging_transaction(
    place, committed, version
):
    """B1, KAFKA-14402: the last stable offset is not held by anybody."""
    connection, topic, make = place
    producer = make()
    begin(producer, topic, 0, version)
    late = delayed(producer)
    assert producer.produce(topic, 0, "first", version=version) == "NONE"
    assert producer.end(commit=False, version=END[version]) == "NONE"
    settle(producer)
    expected = "TRANSACTION_ABORTABLE" if version == V1 else "INVALID_PRODUCER_EPOCH"
    assert late.produce(topic, 0, "late", sequence=1, version=version) == expected
    _, states = active_producers(connection, topic, 0)
    assert [state.current_txn_start_offset for state in states] == [-1]
    after = RawProducer(connection)
    assert after.init() == "NONE"
    assert after.produce(topic, 0, "behind") == "NONE"
    wait_for(committed, ["behind"])


@pytest.mark.no_kill("the transaction is over before its broker is back")
def test_a_produce_that_comes_after_a_timeout_is_told_of_its_epoch(place, committed):
    """B7, KAFKA-19690: recoverable INVALID_PRODUCER_EPOCH, not fatal INVALID_TXN_STATE."""
    connection, topic, make = place
    producer = make()
    # Long enough for the first record to be in the log before.
    assert producer.init(timeout_ms=1000) == "NONE"
    assert producer.produce(topic, 0, "first", version=V2) == "NONE"
    name = producer.transactional_id

    def is_aborted() -> bool:
        return (name, "CompleteAbort") in list_transactions(connection)[1]

    wait_for(is_aborted, True)
    for version in (V1, V2):
        late = delayed(producer)
        answer = late.produce(topic, 0, "late", sequence=1, version=version)
        assert answer == "INVALID_PRODUCER_EPOCH"
    assert committed() == []


def test_in_version_2_a_late_produce_cannot_join_the_next_transaction(place, committed):
    """B2: its epoch is the one of the transaction that it was sent in."""
    _, topic, make = place
    producer = make()
    late = delayed(producer)
    assert producer.produce(topic, 0, "one", version=V2) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    assert producer.produce(topic, 0, "two", version=V2) == "NONE"
    assert late.produce(topic, 0, "late", sequence=1, version=V2) == "INVALID_PRODUCER_EPOCH"
    assert producer.end(commit=True, version=5) == "NONE"
    wait_for(committed, ["one", "two"])


def test_in_version_1_a_late_produce_joins_the_next_transaction_unless_the_epoch_was_raised(
    place, committed
):
    """B2: the anomaly of version 1, and what saves from it."""
    _, topic, make = place
    producer = make()
    for raises, values in ((False, ["late", "one", "two"]), (True, None)):
        start = producer.sequences.get((topic, 0), 0)
        begin(producer, topic, 0, V1)
        late = delayed(producer)
        assert producer.produce(topic, 0, "one") == "NONE"
        assert producer.end(commit=True) == "NONE"
        settle(producer)
        if raises:
            assert producer.init(resume=True) == "NONE"
        begin(producer, topic, 0, V1)
        answer = late.produce(topic, 0, "late", sequence=start + 1)
        assert answer == ("INVALID_PRODUCER_EPOCH" if raises else "NONE")
        sequence = 0 if raises else start + 2
        assert producer.produce(topic, 0, "two", sequence=sequence) == "NONE"
        assert producer.end(commit=True) == "NONE"
        if values is not None:
            wait_for(committed, values)
            settle(producer)
            assert producer.init(resume=True) == "NONE"
    wait_for(committed, ["late", "one", "one", "two", "two"])


def test_in_version_2_a_late_abort_cannot_end_the_next_transaction(place, committed):
    """B3: the delayed abort of transaction k comes when k was committed and k+1 has begun."""
    _, topic, make = place
    producer = make()
    late = delayed(producer)
    assert producer.produce(topic, 0, "k", version=V2) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    settle(producer)
    assert delayed(late).end(commit=False, version=5) == "INVALID_TXN_STATE"
    assert producer.produce(topic, 0, "k+1", version=V2) == "NONE"
    for commit in (False, True):
        assert delayed(late).end(commit=commit, version=5) == "PRODUCER_FENCED"
    assert producer.end(commit=True, version=5) == "NONE"
    wait_for(committed, ["k", "k+1"])


@pytest.mark.parametrize("raises", [False, True])
def test_in_version_1_a_late_abort_ends_the_next_transaction_unless_the_epoch_was_raised(
    place, committed, raises
):
    """B3: what the Jepsen report found, and that a new epoch after each doubt prevents it."""
    _, topic, make = place
    producer = make()
    begin(producer, topic, 0, V1)
    late = delayed(producer)
    assert producer.produce(topic, 0, "k") == "NONE"
    assert producer.end(commit=True) == "NONE"
    settle(producer)
    if raises:
        assert producer.init(resume=True) == "NONE"
    begin(producer, topic, 0, V1)
    assert producer.produce(topic, 0, "k+1") == "NONE"
    assert late.end(commit=False) == ("PRODUCER_FENCED" if raises else "NONE")
    settle(producer)
    assert producer.end(commit=True) == ("NONE" if raises else "INVALID_TXN_STATE")
    wait_for(committed, ["k", "k+1"] if raises else ["k"])


def test_in_version_2_the_first_produce_is_what_adds_the_partition(place):
    """B4: the coordinator knows the partition before the batch can be read."""
    connection, topic, make = place
    producer = make()
    assert list_transactions(connection, state_filters=["Ongoing"],
                             producer_id_filters=[producer.producer_id])[1] == []  # fmt: skip
    assert producer.produce(topic, 1, "a", version=V2) == "NONE"
    # Where a coordinator moves, it is in no broker's list for a moment.
    mine = partial(list_transactions, connection, producer_id_filters=[producer.producer_id])
    wait_for(mine, ("NONE", [(producer.transactional_id, "Ongoing")]))
    assert producer.end(commit=False, version=5) == "NONE"


@pytest.mark.parametrize("version", [V1, V2])
def test_an_end_that_overtakes_the_second_produce_keeps_it_out(place, committed, version):
    """B5, KAFKA-12671: both were in flight; the partition goes on without the second."""
    _, topic, make = place
    producer = make()
    begin(producer, topic, 0, version)
    begin(producer, topic, 1, version)
    second = delayed(producer)
    assert producer.produce(topic, 0, "one", version=version) == "NONE"
    assert producer.end(commit=True, version=END[version]) == "NONE"
    settle(producer)
    # Where the transaction was, the marker told the epoch; elsewhere the coordinator tells it.
    expected = "TRANSACTION_ABORTABLE" if version == V1 else "INVALID_PRODUCER_EPOCH"
    assert second.produce(topic, 1, "two", version=version) == expected
    assert second.produce(topic, 0, "two", sequence=1, version=version) == expected
    wait_for(committed, ["one"])


MANY = pytest.param(
    10_000,
    marks=[
        pytest.mark.chaos,
        pytest.mark.one_broker("takes longer on three than a body may; the other runs there"),
    ],
)


@pytest.mark.parametrize("count", [500, MANY])
def test_rapid_transactions_leave_nothing_ongoing_or_prepared(place, committed, count):
    """B8, KAFKA-18957: after each end the transaction is over soon, and nothing stays behind."""
    connection, topic, make = place
    producer = make("rapid")
    producer.pause_s = 0.001
    for number in range(count):
        version = V1 if number % 2 else V2
        begin(producer, topic, number % 2, version)
        assert producer.produce(topic, number % 2, f"{number}", version=version) == "NONE"
        assert producer.end(commit=number % 3 != 0, version=END[version]) == "NONE"
    settle(producer)
    for partition in (0, 1):
        _, states = active_producers(connection, topic, partition)
        assert {state.current_txn_start_offset for state in states} == {-1}
    assert len(committed()) == sum(number % 3 != 0 for number in range(count))
