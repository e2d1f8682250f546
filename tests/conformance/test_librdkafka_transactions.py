"""librdkafka's transactional producer where it meets groups, refusals, deletions, and numbers."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers.probe import wait_for, wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    producer,
    read_topic,
    transactional,
    values_of,
)


@pytest.fixture
def source(bootstrap, unique) -> str:
    """A topic of two partitions with four records in each."""
    topic = create_topic(bootstrap, unique("in"), 2)
    for number in range(2):
        produce_values(bootstrap, topic, [f"{number}-{i}" for i in range(4)], partition=number)
    return topic


@pytest.fixture
def target(bootstrap, unique) -> str:
    """An empty topic."""
    return create_topic(bootstrap, unique("out"))


def refused_offsets(made, offsets, metadata) -> KafkaError:
    """The error that handing offsets to the transaction must raise; it asks for an abort.

    An abort waits for a record that was in flight to a broker that dies, and librdkafka does not
    send it again then: nothing is in flight.
    """
    assert made.flush(TIMEOUT_S) == 0
    with pytest.raises(KafkaException) as caught:
        made.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
    error = caught.value.args[0]
    assert error.txn_requires_abort(), error
    made.abort_transaction(TIMEOUT_S)
    return error


def test_offsets_of_an_older_generation_are_refused_and_nothing_of_the_transaction_stays(
    bootstrap, source, target, unique
):
    group = unique("group")
    first, second = (consumer(bootstrap, group, heartbeat_interval_ms=200) for _ in range(2))
    first.subscribe([source])
    poll_count(first, 8)
    old = first.consumer_group_metadata()
    second.subscribe([source])

    def divided() -> bool:
        first.poll(0.02)
        second.poll(0.02)
        return len(first.assignment()) == len(second.assignment()) == 1

    wait_until(divided, "the next generation")
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(target, b"stale")
    made.flush(TIMEOUT_S)
    error = refused_offsets(made, [TopicPartition(source, 0, 4)], old)
    assert error.code() == KafkaError.ILLEGAL_GENERATION
    assert committed_offsets(bootstrap, group, source, 2) == {}
    # With the generation of now it works.
    made.begin_transaction()
    made.produce(target, b"current")
    metadata = first.consumer_group_metadata()
    made.send_offsets_to_transaction([TopicPartition(source, 0, 4)], metadata, TIMEOUT_S)
    made.commit_transaction(TIMEOUT_S)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["current"])
    wait_for(lambda: committed_offsets(bootstrap, group, source, 2), {0: 4})
    first.close()
    second.close()


@pytest.mark.no_kill("a consumer that closes asks its coordinator once to leave the group")
def test_offsets_of_a_member_that_left_are_refused(bootstrap, source, target, unique):
    group = unique("group")
    gone = consumer(bootstrap, group)
    gone.subscribe([source])
    poll_count(gone, 1)
    metadata = gone.consumer_group_metadata()
    gone.close()
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(target, b"x")
    error = refused_offsets(made, [TopicPartition(source, 0, 1)], metadata)
    assert error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
    assert committed_offsets(bootstrap, group, source, 2) == {}


def test_a_fenced_static_member_s_offsets_are_refused(bootstrap, source, target, unique):
    group = unique("group")
    first, second = (consumer(bootstrap, group, group_instance_id="one") for _ in range(2))
    first.subscribe([source])
    poll_count(first, 1)
    metadata = first.consumer_group_metadata()
    second.subscribe([source])
    poll_count(second, 1)
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(target, b"x")
    error = refused_offsets(made, [TopicPartition(source, 0, 1)], metadata)
    assert error.code() == KafkaError.FENCED_INSTANCE_ID
    second.close()
    first.close()


@pytest.mark.no_kill("librdkafka tells NOT_COORDINATOR to who asks for committed offsets")
def test_pending_offsets_are_waited_for_and_after_an_abort_the_old_ones_stand(
    bootstrap, source, unique
):
    group = unique("group")
    asker = consumer(bootstrap, group, isolation_level="read_committed")
    asker.commit(offsets=[TopicPartition(source, 0, 1)], asynchronous=False)
    metadata = asker.consumer_group_metadata()
    made = transactional(bootstrap, unique("txn"))

    def stored(timeout_s: float = TIMEOUT_S) -> int:
        return asker.committed([TopicPartition(source, 0)], timeout_s)[0].offset

    for end, expected in ((made.abort_transaction, 1), (made.commit_transaction, 3)):
        made.begin_transaction()
        made.send_offsets_to_transaction([TopicPartition(source, 0, 3)], metadata, TIMEOUT_S)
        with pytest.raises(KafkaException) as caught:
            stored(timeout_s=0.5)
        assert caught.value.args[0].code() == KafkaError._TIMED_OUT
        end(TIMEOUT_S)
        assert stored() == expected
    asker.close()


@pytest.mark.no_kill("a coordinator that loads its log does not know the epoch before: it fences")
def test_after_a_record_was_refused_for_its_size_aborting_and_trying_again_gets_through(
    bootstrap, target, unique
):
    made = transactional(bootstrap, unique("txn"), message_max_bytes=4_000_000)
    made.begin_transaction()
    made.produce(target, b"small")
    made.produce(target, b"x" * 2_000_000)
    with pytest.raises(KafkaException) as caught:
        made.commit_transaction(TIMEOUT_S)
    error = caught.value.args[0]
    assert (error.txn_requires_abort(), error.fatal()) == (True, False)
    made.abort_transaction(TIMEOUT_S)
    # The refused batch used up its sequence numbers in librdkafka, not here: the next one is out
    # of order, which ends in an abort again, and that one bumps the epoch.
    codes = []
    while not codes or codes[-1] != KafkaError.NO_ERROR:
        made.begin_transaction()
        made.produce(target, b"next")
        codes.append(commit_or_abort(made))
    assert codes == [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.NO_ERROR]
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["next"])


def commit_or_abort(made) -> int:
    """Commit; when that asks for an abort, abort. The error code of the commit."""
    try:
        made.commit_transaction(TIMEOUT_S)
    except KafkaException as failed:
        error = failed.args[0]
        assert error.txn_requires_abort(), error
        made.abort_transaction(TIMEOUT_S)
        return error.code()
    return KafkaError.NO_ERROR


def test_a_transaction_whose_topic_was_deleted_meanwhile_ends_for_the_others(
    bootstrap, target, unique
):
    doomed = create_topic(bootstrap, unique("doomed"))
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(doomed, b"gone")
    made.produce(target, b"stays")
    made.flush(TIMEOUT_S)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([doomed])[doomed].result(TIMEOUT_S)
    wait_until(lambda: doomed not in admin.list_topics(timeout=TIMEOUT_S).topics, "the deletion")
    made.commit_transaction(TIMEOUT_S)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["stays"])
    made.begin_transaction()
    made.produce(target, b"next")
    made.commit_transaction(TIMEOUT_S)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["next", "stays"])


def test_one_transaction_over_many_partitions_shows_in_all_of_them_at_once(bootstrap, unique):
    topics = [create_topic(bootstrap, unique(f"wide{number}"), 10) for number in range(3)]
    made = transactional(bootstrap, unique("txn"))
    for commits in (False, True):
        made.begin_transaction()
        for topic in topics:
            for number in range(10):
                made.produce(topic, f"{commits} {number}".encode(), partition=number)
        made.flush(TIMEOUT_S)
        (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)
    for topic in topics:
        expected = [f"True {number}" for number in range(10)]
        wait_for(lambda one=topic: values_of(read_topic(bootstrap, one)), expected)


def test_a_transaction_in_which_nothing_was_sent_commits_and_aborts(bootstrap, target, unique):
    made = transactional(bootstrap, unique("txn"))
    for end in (made.commit_transaction, made.abort_transaction):
        made.begin_transaction()
        end(TIMEOUT_S)
    made.begin_transaction()
    made.produce(target, b"real")
    made.commit_transaction(TIMEOUT_S)
    wait_for(lambda: [each.offset for each in read_topic(bootstrap, target)], [0])


def test_a_transaction_timeout_over_the_broker_s_maximum_is_refused_at_once(bootstrap, unique):
    made = producer(bootstrap, transactional_id=unique("txn"), transaction_timeout_ms=2**31 - 1)
    with pytest.raises(KafkaException) as caught:
        made.init_transactions(TIMEOUT_S)
    error = caught.value.args[0]
    assert error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
    assert error.fatal()
