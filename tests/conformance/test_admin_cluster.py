"""Requests by hand about the cluster, its directories and its topics: both brokers answer alike.

Topics are deleted and recreated while clients use them.
"""

from __future__ import annotations

import uuid

import pytest
from support.brokers.probe import ports_of, wait_for, wait_until
from support.core.plain_messages import operations
from support.raw.raw import RawProducer, message_class
from support.raw.raw_admin import (
    ZERO_ID,
    create_topics,
    delete_topics,
    leaders,
    lookup_error,
    make_topic,
    new_topic,
    stable_end,
    wait_until_served,
)

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

MARKERS = pytest.mark.no_kill("a marker that the next coordinator writes again takes an offset")


# --------------------------------------------------------------------------- cluster, directories


def describe_cluster(connection, version: int, endpoint_type: int):
    """The answer to DescribeCluster, with all it may be asked for."""
    request = message_class(ApiKey.DESCRIBE_CLUSTER)(
        endpoint_type=endpoint_type,
        include_cluster_authorized_operations=True,
        include_fenced_brokers=True,
    )
    return connection.ask(request, version)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.no_kill("a broker that is down is not told of before version 2")
def test_the_cluster_has_its_brokers_and_everything_is_allowed(bootstrap, connection, version):
    answer = describe_cluster(connection, version, 1)
    found = sorted((each.host, each.port, each.is_fenced) for each in answer.brokers)
    ports = sorted(ports_of(bootstrap))
    assert found == [("127.0.0.1", port, False) for port in ports]
    assert answer.error_code == 0
    assert answer.controller_id in {each.broker_id for each in answer.brokers}
    assert answer.cluster_id
    assert operations(answer.cluster_authorized_operations) == {5, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize(("endpoint_type", "error"), [(2, 114), (0, 115), (5, 115)])
def test_addresses_of_other_than_brokers_are_refused(connection, endpoint_type, error):
    """114 is MISMATCHED_ENDPOINT_TYPE, 115 UNSUPPORTED_ENDPOINT_TYPE (KIP-919)."""
    assert describe_cluster(connection, 2, endpoint_type).error_code == error
    assert describe_cluster(connection, 0, endpoint_type).error_code == 0


def log_dirs(connection, topics, version: int = 4):
    """The only directory of DescribeLogDirs; None asks for all partitions."""
    cls = message_class(ApiKey.DESCRIBE_LOG_DIRS)
    wanted = topics and [
        cls.DescribableLogDirTopic(topic=name, partitions=parts) for name, parts in topics
    ]
    (only,) = connection.ask(cls(topics=wanted), version).results
    return only


@pytest.mark.one_broker("looks at the one directory, and at the bytes of it")
def test_the_directory_is_told_with_its_room_and_the_size_of_partitions(broker, connection, unique):
    topic = unique("sized")
    make_topic(connection, topic, 3)
    producer = RawProducer(connection)
    batch = producer.batch("x" * 500, sequence=-1)
    assert producer.produce_bytes(topic, 1, batch) == "NONE"
    found = log_dirs(connection, [(topic, [0, 1, 9]), ("never-made", [0])])
    assert found.error_code == 0
    assert found.log_dir == str(broker.data_dir.absolute())
    assert found.total_bytes > found.usable_bytes > 0
    (only,) = found.topics
    sizes = {each.partition_index: each.partition_size for each in only.partitions}
    assert (only.name, sizes) == (topic, {0: 0, 1: len(batch)})
    assert all((p.offset_lag, p.is_future_key) == (0, False) for p in only.partitions)
    assert log_dirs(connection, []).topics == []
    assert topic in {each.name for each in log_dirs(connection, None, version=1).topics}


# --------------------------------------------------------------------------- topics in pages


def page(connection, names, limit: int, cursor: tuple[str, int] | None = None):
    """(topics as (name, error, partitions), next cursor) of DescribeTopicPartitions."""
    cls = message_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    place = cursor and cls.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    request = cls(
        topics=[cls.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=place,
    )
    answer = connection.ask(request, 0)
    topics = [
        (t.name, error_name(t.error_code), [p.partition_index for p in t.partitions])
        for t in answer.topics
    ]
    following = answer.next_cursor
    return topics, following and (following.topic_name, following.partition_index)


def test_partitions_come_in_pages_in_the_order_of_names(connection, unique):
    one, two = unique("page-a"), unique("page-b")
    make_topic(connection, two, 2)
    make_topic(connection, one, 3)
    every = [(one, "NONE", [0, 1, 2]), (two, "NONE", [0, 1])]
    assert page(connection, [two, one, one], 10) == (every, None)
    assert page(connection, [two, one], 2) == ([(one, "NONE", [0, 1])], (one, 2))
    assert page(connection, [two, one], 3) == (every[:1], (two, 0))
    assert page(connection, [two, one], 4) == ([every[0], (two, "NONE", [0])], (two, 1))
    assert page(connection, [one], 0) == ([(one, "NONE", [0])], (one, 1))
    assert page(connection, [one], 10, (one, 1)) == ([(one, "NONE", [1, 2])], None)
    assert page(connection, [one], 10, (one, 3)) == ([(one, "NONE", [])], None)


def test_a_cursor_outside_of_what_is_asked_and_names_of_no_topic_are_refused(connection, unique):
    topic, never = unique("page"), unique("never")
    make_topic(connection, topic)
    refused = ([(topic, "INVALID_REQUEST", [])], None)
    assert page(connection, [topic], 10, (topic, -1)) == refused
    assert page(connection, [topic], 10, ("a", 0)) == refused
    assert page(connection, [never], 10) == ([(never, "UNKNOWN_TOPIC_OR_PARTITION", [])], None)
    assert page(connection, ["a/b"], 10) == ([("a/b", "INVALID_TOPIC_EXCEPTION", [])], None)


# --------------------------------------------------------------------------- metadata


def metadata(connection, *topics, allow: bool = False, version: int = 12):
    """(name, error) of each topic that Metadata answers; topics are names or ids."""
    cls = message_class(ApiKey.METADATA)
    entries = [
        cls.MetadataRequestTopic(name=each, topic_id=ZERO_ID)
        if isinstance(each, str)
        else cls.MetadataRequestTopic(name=None, topic_id=each)
        for each in topics
    ]
    request = cls(topics=entries, allow_auto_topic_creation=allow)
    return [(t.name, error_name(t.error_code)) for t in connection.ask(request, version).topics]


def test_topics_are_found_by_id_until_they_are_deleted(connection, unique):
    topic = unique("by-id")
    topic_id = make_topic(connection, topic)
    assert metadata(connection, topic_id) == [(topic, "NONE")]
    assert metadata(connection, topic, topic) == [(topic, "NONE")]
    assert metadata(connection, uuid.UUID(int=5)) == [(None, "UNKNOWN_TOPIC_ID")]
    delete_topics(connection, (None, topic_id))
    wait_for(lambda: metadata(connection, topic_id), [(None, "UNKNOWN_TOPIC_ID")])


@pytest.mark.parametrize("allow", [True, False])
def test_names_that_cannot_be_created_are_told_apart_from_unknown_ones(connection, unique, allow):
    taken = unique("col.lides")
    make_topic(connection, taken)
    collides = taken.replace(".", "_", 1)
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert metadata(connection, "a/b", allow=allow) == [("a/b", "INVALID_TOPIC_EXCEPTION")]
    assert metadata(connection, collides, allow=allow) == [(collides, unknown)]
    reserved = "__cluster_metadata"
    assert metadata(connection, reserved, allow=allow) == [(reserved, unknown)]


def test_a_topic_is_created_for_who_asks_only_where_that_is_allowed(connection, unique):
    topic = unique("wanted")
    assert metadata(connection, topic) == [(topic, "UNKNOWN_TOPIC_OR_PARTITION")]
    wait_for(lambda: metadata(connection, topic, allow=True), [(topic, "NONE")])


# --------------------------------------------------------------------------- ids and transactions


def produce_by_id(connection, topic_id: uuid.UUID, partition: int = 0) -> str:
    """Produce version 13 of one record; the error."""
    cls = message_class(ApiKey.PRODUCE)
    data = cls.TopicProduceData
    batch = RawProducer(connection).batch("a", sequence=-1)
    place = data.PartitionProduceData(index=partition, records=batch)
    request = cls(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[data(topic_id=topic_id, partition_data=[place])],
    )
    (topic,) = connection.ask(request, 13).responses
    assert topic.topic_id == topic_id or topic_id == ZERO_ID
    return error_name(topic.partition_responses[0].error_code)


def test_what_is_written_to_the_id_of_a_deleted_topic_is_refused(connection, unique):
    topic = unique("produced")
    old = make_topic(connection, topic)
    assert produce_by_id(connection, old) == "NONE"
    assert produce_by_id(connection, old, 4) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert produce_by_id(connection, uuid.UUID(int=9)) == "UNKNOWN_TOPIC_ID"
    assert produce_by_id(connection, ZERO_ID) == "UNKNOWN_TOPIC_ID"
    new = recreate(connection, topic)
    assert produce_by_id(connection, old) == "UNKNOWN_TOPIC_ID"
    assert produce_by_id(connection, new) == "NONE"


def recreate(connection, topic: str) -> uuid.UUID:
    """Delete the topic, wait until the broker has forgotten it, make it anew; its new id."""
    delete_topics(connection, (topic, ZERO_ID))
    wait_for(lambda: lookup_error(connection, topic, 0), "UNKNOWN_TOPIC_OR_PARTITION")
    return make_topic(connection, topic)


def transaction_state(connection, transactional_id: str) -> str:
    """Return the state that DescribeTransactions reports."""
    request = message_class(ApiKey.DESCRIBE_TRANSACTIONS)(transactional_ids=[transactional_id])
    (found,) = connection.ask(request, 0).transaction_states
    return found.transaction_state


def begun(connection, transactional_id: str, version: int, *topics: str) -> RawProducer:
    """A producer with an open transaction; under version 1 the topics are in it already."""
    producer = RawProducer(connection, transactional_id=transactional_id)
    assert (producer.find_coordinator(), producer.init()) == ("NONE", "NONE")
    if version == 1:
        for topic in topics:
            assert producer.add_partitions(topic, 0) == "NONE"
    return producer


PRODUCE_VERSION = {1: 11, 2: 12}
END_VERSION = {1: 4, 2: 5}


@pytest.mark.parametrize("version", [1, 2])
@MARKERS
def test_a_transaction_completes_though_one_of_its_topics_is_deleted(connection, unique, version):
    gone, kept, transactional_id = unique("gone"), unique("kept"), unique("txn")
    make_topic(connection, gone)
    make_topic(connection, kept)
    producer = begun(connection, transactional_id, version, gone, kept)
    for topic in (gone, kept):
        assert producer.produce(topic, 0, "1", version=PRODUCE_VERSION[version]) == "NONE"
    delete_topics(connection, (gone, ZERO_ID))
    wait_until(lambda: leaders(connection, gone) == 0, "the topic to be gone")
    assert producer.end(commit=True, version=END_VERSION[version]) == "NONE"
    wait_for(lambda: transaction_state(connection, transactional_id), "CompleteCommit")
    assert stable_end(connection, kept) == 2


FIRST_SEQUENCES = {
    1: (("as before", 2, "NONE"), ("anew", 0, "OUT_OF_ORDER_SEQUENCE_NUMBER")),
    2: (("as before", 2, "OUT_OF_ORDER_SEQUENCE_NUMBER"), ("anew", 0, "NONE")),
}
"""Version 1 takes any first sequence of a producer it does not know, version 2 only 0 (KIP-890)."""


@pytest.mark.parametrize("version", [1, 2])
@MARKERS
def test_a_topic_made_anew_in_a_transaction_knows_nothing_of_its_producer(
    connection, unique, version
):
    topic, transactional_id = unique("anew"), unique("txn")
    make_topic(connection, topic)
    producer = begun(connection, transactional_id, version, topic)
    produce = PRODUCE_VERSION[version]
    assert producer.produce(topic, 0, "1", "2", version=produce) == "NONE"
    recreate(connection, topic)
    for value, sequence, error in FIRST_SEQUENCES[version]:
        assert producer.produce(topic, 0, value, sequence=sequence, version=produce) == error
    assert producer.end(commit=True, version=END_VERSION[version]) == "NONE"
    wait_for(lambda: transaction_state(connection, transactional_id), "CompleteCommit")
    assert stable_end(connection, topic) == 2, "one record and the marker"


def test_a_configuration_of_all_partitions_is_that_of_new_ones(connection, unique):
    """A topic that grows keeps its options: the new partition refuses what the old ones do."""
    topic = unique("grown")
    configs = {"max.message.bytes": "500"}
    assert not create_topics(connection, new_topic(topic, 1, configs=configs))[topic].error_code
    wait_until_served([connection], topic, 1)
    cls = message_class(ApiKey.CREATE_PARTITIONS)
    more = cls.CreatePartitionsTopic(name=topic, count=2, assignments=None)
    connection.ask(cls(topics=[more], timeout_ms=10_000, validate_only=False), 3)
    wait_until_served([connection], topic, 2)
    producer = RawProducer(connection)
    batch = producer.batch("x" * 1000, sequence=-1)
    assert producer.produce_bytes(topic, 1, batch) == "MESSAGE_TOO_LARGE"
    assert producer.produce_bytes(topic, 1, producer.batch("x", sequence=-1)) == "NONE"
