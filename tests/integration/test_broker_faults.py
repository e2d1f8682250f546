"""Faults by rule, in real brokers: what clients of two kinds see, and what is durable."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from support.brokers.probe import wait_until

from broker_sim import ClusterError, Kafka, LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("faults"), faults=True) as started:
        yield started


@pytest.fixture
def kafka(cluster) -> Iterator[LocalCluster]:
    """The broker, which runs and has no rules."""
    cluster.start()
    yield cluster
    cluster.start()
    cluster.clear_faults()


def transactional(kafka, name, **more):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name,
                         "client.id": name, **more})  # fmt: skip
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"row")
    return producer


def values(kafka, topic):
    return [each.value for each in kafka.records(topic)]


def test_a_lost_answer_to_end_txn_leaves_the_transaction_committed(kafka, unique):
    topic = unique("lost")
    producer = transactional(kafka, topic)
    fault = kafka.fault("EndTxn", drop_response=True, disconnect=True, transactional_id=topic)
    producer.commit_transaction(60)
    assert values(kafka, topic) == [b"row"]
    assert fault.fired == 1
    assert fault.calls == 2  # the client asked again


def test_an_answer_that_never_leaves_is_waited_for_and_the_request_was_carried_out(kafka, unique):
    topic = unique("silent")
    producer = transactional(kafka, topic, **{"socket.timeout.ms": 2_000})
    with kafka.fault("EndTxn", drop_response=True, client_id=topic) as fault:
        producer.commit_transaction(60)
        assert fault.fired == 1
    assert values(kafka, topic) == [b"row"]


@pytest.mark.parametrize("client", ["librdkafka", "ours"])
def test_a_write_that_is_refused_twice_is_there_once(kafka, unique, client):
    topic = unique("refused")
    kafka.create_topic(topic)
    fault = kafka.fault("Produce", error="NOT_ENOUGH_REPLICAS", times=2, topic=topic)
    if client == "ours":
        kafka.produce(topic, ["row"])
    else:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers,
                             "enable.idempotence": True})  # fmt: skip
        producer.produce(topic, b"row")
        assert producer.flush(60) == 0
    assert values(kafka, topic) == [b"row"]
    assert (fault.calls, fault.fired) == (3, 2)


def test_an_error_that_ends_a_transaction_is_what_the_client_raises(kafka, unique):
    topic = unique("fenced")
    producer = transactional(kafka, topic)
    kafka.fault("EndTxn", error="PRODUCER_FENCED", transactional_id=topic)
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(30)
    assert values(kafka, topic) == []


def test_a_connection_that_is_closed_before_the_request_has_the_request_again(kafka, unique):
    topic = unique("closed")
    kafka.create_topic(topic)
    with kafka.fault("Produce", disconnect=True, topic=topic) as fault:
        kafka.produce(topic, ["row"])
        assert (fault.calls, fault.fired) == (2, 1)
    assert values(kafka, topic) == [b"row"]


@pytest.mark.parametrize(("after", "found"), [(False, []), (True, [b"row"])])
def test_a_broker_that_is_killed_has_the_write_only_if_it_was_carried_out(
    kafka, unique, after, found
):
    topic = unique("killed")
    kafka.create_topic(topic)
    kafka.fault("Produce", kill=True, drop_response=after, topic=topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all",
                         "message.timeout.ms": 1_000, "retries": 0})  # fmt: skip
    producer.produce(topic, b"row")
    producer.flush(30)
    wait_until(lambda: not kafka.is_running(), "the broker to be gone")
    kafka.start()
    assert values(kafka, topic) == found
    assert kafka.fault("Produce", kill=True, topic=topic).calls == 0


@pytest.mark.parametrize("rule", [{"pause_ms": 700}, {"delay_ms": 700}])
def test_a_pause_holds_every_client_and_a_delay_only_the_one(kafka, unique, rule):
    topic = unique("slow")
    kafka.create_topic(topic)
    kafka.fault("Produce", topic=topic, **rule)
    answered = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
    began = time.monotonic()
    producer.produce(topic, b"row", on_delivery=lambda *_: answered.append(time.monotonic()))
    while values(kafka, topic) == []:
        pass
    seen = time.monotonic()
    producer.flush(30)
    assert answered[0] - began >= 0.7
    assert (seen < answered[0]) or "pause_ms" in rule


def test_a_rule_of_another_topic_client_or_call_does_nothing(kafka, unique):
    topic = unique("spared")
    kafka.create_topic(topic)
    kafka.fault("Produce", kill=True, topic="another")
    kafka.fault("Produce", kill=True, client_id="another")
    kafka.fault("Produce", kill=True, topic=topic, on_call=3)
    kafka.produce(topic, ["a"])
    kafka.produce(topic, ["b"])
    assert values(kafka, topic) == [b"a", b"b"]
    assert kafka.is_running()


def test_a_rule_that_cannot_be_is_refused_with_the_brokers_text(kafka):
    with pytest.raises(ValueError, match="on_call=0: the first request is number 1"):
        kafka.fault("EndTxn", on_call=0, kill=True)


def test_a_proxy_of_the_environment_is_not_asked(kafka, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with kafka.fault("EndTxn", pause_ms=1) as fault:
        assert fault.fired == 0


def test_other_languages_ask_over_http(kafka):
    fault = kafka.fault("EndTxn", pause_ms=1)
    ((address, rule_id),) = fault.rules
    with urllib.request.urlopen(address) as answer:
        assert [each["id"] for each in json.load(answer)] == [rule_id]


def test_a_cluster_without_faults_says_how_to_have_them(tmp_path):
    with pytest.raises(ClusterError, match="faults=True"):
        LocalCluster(tmp_path).fault("EndTxn", kill=True)
    with pytest.raises(ClusterError, match="no broker runs"):
        LocalCluster(tmp_path, faults=True).fault("EndTxn", kill=True)


def test_a_broker_that_is_gone_has_no_rules_and_no_counts(kafka):
    with kafka.fault("EndTxn", pause_ms=1) as fault:
        kafka.kill()
        with pytest.raises(ClusterError, match="a broker that is gone has no counts"):
            assert fault.fired == 0
        for broker_id in (0, 7):
            with pytest.raises(ClusterError, match=f"broker {broker_id} does not run"):
                kafka.fault("EndTxn", pause_ms=1, broker_id=broker_id)
    kafka.start()
    cleared = kafka.fault("EndTxn", pause_ms=1)
    kafka.clear_faults()
    with pytest.raises(ClusterError, match="has no rule"):
        assert cleared.fired == 0


def test_a_rule_for_three_brokers_strikes_where_the_leader_is(tmp_path, unique):
    topic = unique("three")
    with LocalCluster(tmp_path, brokers=3, faults=True) as cluster:
        cluster.create_topic(topic)
        fault = cluster.fault("Produce", error="NOT_ENOUGH_REPLICAS", times=2, topic=topic)
        assert len(fault.rules) == 3
        Kafka(cluster.bootstrap_servers).produce(topic, ["row"])
        assert values(cluster, topic) == [b"row"]
        assert fault.fired == 2
        fault.remove()
        assert (fault.calls, fault.fired) == (3, 2)  # as they were when it ended
        assert len(cluster.fault("EndTxn", pause_ms=1, broker_id=1).rules) == 1
