"""A refusal names the resource, the operation that is missing on it, and the values compared."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import Asked, CoreBroker
from support.core.scripted_faults import LOST, refused
from support.query.commit_plans import PROGRESS_GROUP, build_plan, commit, with_baseline

from txnlog_kafka.errors import BrokerError, DeadlineExceeded, FatalError
from txnlog_kafka.operations.admin import create_topic, delete_group
from txnlog_kafka.operations.calls import fetch_broker_config
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.offsets import fetch_committed
from txnlog_kafka.operations.retry import OPERATIONS, Action, Subject, error_of
from txnlog_kafka.operations.transaction import init_producer_id
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K

TOPIC = E.TOPIC_AUTHORIZATION_FAILED
GROUP = E.GROUP_AUTHORIZATION_FAILED
ID = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
CLUSTER = E.CLUSTER_AUTHORIZATION_FAILED
MAX_TIMEOUT = "transaction.max.timeout.ms"
SHOW_TRANSACTIONS = (
    "Do this to see open transactions: python -m broker_sim transactions list "
    "--bootstrap-server HOST:PORT --state Ongoing",
)


# ------------------------------------------------------------------ authorization


@pytest.mark.parametrize(
    ("asked", "code", "operation"),
    [
        (K.FETCH, TOPIC, "READ"),
        (K.OFFSET_COMMIT, TOPIC, "READ"),
        (K.LIST_OFFSETS, TOPIC, "DESCRIBE"),
        (K.OFFSET_FETCH, TOPIC, "DESCRIBE"),
        (K.METADATA, TOPIC, "DESCRIBE"),
        (K.CREATE_TOPICS, TOPIC, "CREATE"),
        (K.DELETE_TOPICS, TOPIC, "DELETE"),
        (K.FIND_COORDINATOR, GROUP, "DESCRIBE"),
        (K.OFFSET_FETCH, GROUP, "DESCRIBE"),
        (K.OFFSET_COMMIT, GROUP, "READ"),
        (K.FIND_COORDINATOR, ID, "DESCRIBE"),
        (K.DESCRIBE_TRANSACTIONS, ID, "DESCRIBE"),
    ],
)
def test_the_operation_depends_on_the_request(asked: K, code: E, operation: str) -> None:
    subject = Subject(asked, topics=("the-topic",), group_id="the-group", transactional_id="the-id")
    text = str(error_of(Action.FATAL, code, "asking", subject))
    resource = {
        TOPIC: "topic 'the-topic'",
        GROUP: "group 'the-group'",
        ID: "transactional id 'the-id'",
    }[code]
    assert f"grant {operation} " in text
    assert f"on {resource} to this user" in text
    assert code.name in text


def test_several_topics_are_named_and_many_are_counted() -> None:
    two = Subject(K.FETCH, topics=("a", "b"))
    assert "on topics 'a', 'b' to" in str(error_of(Action.FATAL, TOPIC, "reading", two))
    many = Subject(K.FETCH, topics=tuple(f"t{n:02}" for n in range(40)))
    text = str(error_of(Action.FATAL, TOPIC, "reading", many))
    assert "'t04' and 35 others" in text
    assert "t05" not in text


def test_a_topic_that_is_not_there_may_only_want_to_be_created() -> None:
    text = str(error_of(Action.FATAL, TOPIC, "reading", Subject(K.METADATA, topics=("new",))))
    assert "grant CREATE" in text


def test_what_an_operation_includes_is_said_where_the_first_request_needs_less() -> None:
    group = Subject(K.FIND_COORDINATOR, group_id="g")
    assert "READ includes it" in str(error_of(Action.FATAL, GROUP, "finding", group))
    mine = Subject(K.FIND_COORDINATOR, transactional_id="t")
    assert "WRITE includes it" in str(error_of(Action.FATAL, ID, "finding", mine))


def test_a_request_that_no_table_has_still_names_its_resource() -> None:
    subject = Subject(K.LIST_GROUPS, group_id="g")
    text = str(error_of(Action.FATAL, GROUP, "listing", subject))
    assert "grant the operation that ListGroups needs on group 'g' to this user" in text
    assert "on the cluster" in str(error_of(Action.FATAL, CLUSTER, "listing", subject))
    assert "this user" in str(error_of(Action.FATAL, TOPIC, "asking"))


def test_the_table_is_of_authorization_errors_alone() -> None:
    assert set(OPERATIONS) == {TOPIC, GROUP, ID, CLUSTER}


# ------------------------------------------------------------------ what operations say


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        (K.INIT_PRODUCER_ID, ID, "grant WRITE on transactional id 't'"),
        (K.OFFSET_FETCH, GROUP, f"on group '{PROGRESS_GROUP}' to this user"),
        (K.ADD_PARTITIONS_TO_TXN, TOPIC, "grant WRITE on topic 'out'"),
        (K.ADD_PARTITIONS_TO_TXN, ID, "grant WRITE on transactional id 't'"),
        (K.ADD_OFFSETS_TO_TXN, GROUP, "grant READ on group 'g'"),
        (K.PRODUCE, TOPIC, "grant WRITE on topic 'out'"),
        (K.PRODUCE, ID, "grant WRITE on transactional id 't'"),
        (K.TXN_OFFSET_COMMIT, TOPIC, "grant READ on topic 'in'"),
        (K.TXN_OFFSET_COMMIT, GROUP, "grant READ on group 'g'"),
        (K.TXN_OFFSET_COMMIT, ID, "grant WRITE on transactional id 't'"),
        (K.END_TXN, ID, "grant WRITE on the transactional id to this user"),
    ],
)
def test_a_commit_that_is_not_allowed_says_what_to_grant(asked: K, code: E, named: str) -> None:
    cluster = with_baseline(1)  # transaction version 1 asks for everything by name
    cluster.always[asked] = refused(code)
    with pytest.raises(FatalError) as caught:
        commit(cluster, build_plan())
    assert named in str(caught.value)
    assert caught.value.code == code


def test_a_topic_whose_offsets_may_not_be_read_is_told() -> None:
    cluster = with_baseline(1)
    answer = cluster.answer

    def without_topics(asked: Asked, message: Any) -> Any:
        if asked.api_key == K.OFFSET_FETCH:
            for each in (p for g in message.groups for t in g.topics for p in t.partitions):
                each.error_code = TOPIC
        return answer(asked, message)

    cluster.answer = without_topics  # type: ignore[method-assign]
    with pytest.raises(FatalError, match="grant DESCRIBE on topic 'out'") as caught:
        commit(cluster, build_plan())
    assert caught.value.code == TOPIC


def test_a_coordinator_that_may_not_be_looked_for_says_what_to_grant(cluster: CoreBroker) -> None:
    cluster.script(K.FIND_COORDINATOR, refused(ID), refused(GROUP))
    with pytest.raises(FatalError, match=r"grant DESCRIBE .* on transactional id 't' to this user"):
        cluster.run(init_producer_id(cluster.session(), "t", 60_000))
    with pytest.raises(FatalError, match=r"grant DESCRIBE .* on group 'g' to this user"):
        cluster.run(fetch_committed(cluster.session(), "g"))


def test_deleting_a_group_that_is_not_allowed_says_what_to_grant(cluster: CoreBroker) -> None:
    cluster.always[K.DELETE_GROUPS] = refused(GROUP)
    with pytest.raises(BrokerError, match="grant DELETE on group 'g' to this user"):
        cluster.run(delete_group(cluster.session(), "g"))


def test_creating_a_topic_that_is_not_allowed_says_what_to_grant(cluster: CoreBroker) -> None:
    cluster.always[K.CREATE_TOPICS] = refused(TOPIC)
    with pytest.raises(BrokerError, match="grant CREATE on topic 'new' to this user"):
        cluster.run(create_topic(cluster.session(), "new", partitions=1))


# ------------------------------------------------------------------ values of the broker


def test_a_transaction_timeout_over_the_brokers_is_told_with_both_values(
    cluster: CoreBroker,
) -> None:
    cluster.always[K.INIT_PRODUCER_ID] = refused(E.INVALID_TRANSACTION_TIMEOUT)
    with pytest.raises(FatalError) as caught:
        cluster.run(init_producer_id(cluster.session(), "t", 1_800_000))
    assert "transaction.timeout.ms=1800000" in str(caught.value)
    assert f"{MAX_TIMEOUT}=900000" in str(caught.value)


@pytest.mark.parametrize("fault", [LOST, refused(CLUSTER)], ids=["unanswered", "refused"])
def test_without_the_brokers_value_the_option_is_still_named(cluster: CoreBroker, fault) -> None:
    cluster.always[K.INIT_PRODUCER_ID] = refused(E.INVALID_TRANSACTION_TIMEOUT)
    cluster.always[K.DESCRIBE_CONFIGS] = fault
    with pytest.raises(FatalError) as caught:
        cluster.run(init_producer_id(cluster.session(), "t", 1_800_000))
    assert "transaction.timeout.ms=1800000" in str(caught.value)
    assert MAX_TIMEOUT in str(caught.value)
    assert "900000" not in str(caught.value)
    assert len(cluster.requests(K.DESCRIBE_CONFIGS)) == 1


def test_a_brokers_config_is_asked_once_and_never_an_error(cluster: CoreBroker) -> None:
    session = cluster.session()
    assert cluster.run(fetch_broker_config(session, MAX_TIMEOUT)) is None, "no broker is known yet"
    cluster.run(refresh_metadata(session, ()))
    assert cluster.run(fetch_broker_config(session, MAX_TIMEOUT)) == "900000"
    assert cluster.run(fetch_broker_config(session, "b")) is None
    started_ms = cluster.now_ms
    cluster.always[K.DESCRIBE_CONFIGS] = LOST
    assert cluster.run(fetch_broker_config(session, MAX_TIMEOUT)) is None
    assert cluster.now_ms - started_ms <= 5_000
    (asked,) = cluster.requests(K.DESCRIBE_CONFIGS)[-1].resources
    assert (asked.resource_type, asked.resource_name) == (4, "1")


# ------------------------------------------------------------------ waits that ran out


def test_a_full_disk_of_the_broker_is_told_when_the_wait_is_over(cluster: CoreBroker) -> None:
    cluster.always[K.PRODUCE] = refused(E.KAFKA_STORAGE_ERROR)
    with pytest.raises(DeadlineExceeded) as caught:
        commit(cluster, build_plan())
    text = str(caught.value)
    assert "out-0: KAFKA_STORAGE_ERROR (56)" in text
    assert "disk is full" in text
    assert "free space" in text


def test_pending_offsets_are_told_with_who_can_hold_them(cluster: CoreBroker) -> None:
    cluster.always[K.OFFSET_FETCH] = refused(E.UNSTABLE_OFFSET_COMMIT)
    with pytest.raises(DeadlineExceeded) as caught:
        cluster.run(fetch_committed(cluster.session(), "g"))
    text = str(caught.value)
    assert "another transactional id" in text
    assert "transaction.timeout.ms" in text
    assert caught.value.commands == SHOW_TRANSACTIONS


def test_a_transaction_that_does_not_end_is_told_with_where_to_look(cluster: CoreBroker) -> None:
    cluster.always[K.INIT_PRODUCER_ID] = refused(E.CONCURRENT_TRANSACTIONS)
    with pytest.raises(DeadlineExceeded) as caught:
        cluster.run(init_producer_id(cluster.session(), "t", 60_000))
    text = str(caught.value)
    assert "CONCURRENT_TRANSACTIONS (51)" in text
    assert caught.value.commands == SHOW_TRANSACTIONS
