"""kcat, the C command line client, used from a shell as one uses it for Kafka, on both brokers."""

from __future__ import annotations

import json

import pytest
from support.brokers.probe import wait_until
from support.clients.kcat import Kcat, kcat
from support.clients.librdkafka import (
    create_topic,
    plain_producer,
    values_of,
)
from support.clients.librdkafka import read_topic as read_with_librdkafka
from support.harness.availability import available

TIMEOUT_S = 30
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="session")
def cat() -> Kcat:
    """The program; a test is not run where it cannot be had."""
    return available(kcat)


def consume(cat: Kcat, bootstrap: str, topic: str, *arguments: str) -> list[str]:
    """Return the lines that a consumer prints, from the start (or `-o`) until the end (-e)."""
    start = () if "-o" in arguments else ("-o", "beginning")
    return cat.output(bootstrap, "-C", "-q", "-e", "-t", topic, *start, *arguments).splitlines()


@pytest.mark.no_kill("tells which brokers are there")
def test_the_metadata_as_json_has_leader_replicas_and_in_sync_replicas(bootstrap, unique, cat):
    topic = create_topic(bootstrap, unique("listed"), 2)
    told = json.loads(cat.output(bootstrap, "-L", "-J", "-t", topic))
    assert sorted(each["name"] for each in told["brokers"]) == sorted(bootstrap.split(","))
    ids = sorted(each["id"] for each in told["brokers"])
    (described,) = told["topics"]
    assert described["topic"] == topic
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    for each in described["partitions"]:
        assert {"id": each["leader"]} == each["replicas"][0]
        for replicas in (each["replicas"], each["isrs"]):
            assert sorted(replica["id"] for replica in replicas) == ids


def test_keys_values_nulls_and_headers_come_back(bootstrap, topic, cat):
    headers = ("-H", "trace=1", "-H", "trace=2", "-H", "empty=", "-H", "none")
    cat.run(bootstrap, "-P", "-t", topic, "-K", ":", "-Z", *headers, stdin="k1:v1\n:\nk3:\n")
    lines = consume(cat, bootstrap, topic, "-J")
    first, second, third = (json.loads(line) for line in lines)
    assert (first["key"], first["payload"]) == ("k1", "v1")
    assert (second["key"], second["payload"]) == (None, None)
    assert (third["key"], third["payload"]) == ("k3", None)
    assert first["headers"] == ["trace", "1", "trace", "2", "empty", "", "none", None]
    assert [each["offset"] for each in (first, second, third)] == [0, 1, 2]


@pytest.mark.parametrize(
    "start, expected",
    [
        ("beginning", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("7", [7, 8, 9]),
        ("-2", [8, 9]),
        (f"s@{FIRST_MS + 6_500}", [7, 8, 9]),
    ],
)
def test_a_consumer_starts_where_o_says(bootstrap, topic, cat, start, expected):
    produce_timed(bootstrap, topic, 10)
    assert consume(cat, bootstrap, topic, "-o", start, "-f", "%o\n") == [str(o) for o in expected]


def test_a_consumer_stops_before_the_timestamp_it_was_told(bootstrap, topic, cat):
    produce_timed(bootstrap, topic, 10)
    limits = ("-o", f"s@{FIRST_MS + 2_000}", "-o", f"e@{FIRST_MS + 5_000}")
    assert consume(cat, bootstrap, topic, *limits, "-f", "%o\n") == ["2", "3", "4"]


def produce_timed(bootstrap: str, topic: str, count: int) -> None:
    """Records one second apart from FIRST_MS on."""
    made = plain_producer(bootstrap)
    for number in range(count):
        made.produce(topic, f"{number}".encode(), timestamp=FIRST_MS + number * 1000)
    assert made.flush(TIMEOUT_S) == 0


def test_all_lines_of_one_input_are_one_transaction(bootstrap, unique, cat):
    topic = create_topic(bootstrap, unique("txn"), 3)
    lines = [f"line {number:02}" for number in range(30)]
    transaction = ("-X", f"transactional.id={unique('id')}")
    for _ in range(2):
        cat.run(bootstrap, "-P", "-t", topic, *transaction, stdin="\n".join(lines) + "\n")
    wait_until(
        lambda: values_of(read_with_librdkafka(bootstrap, topic)) == sorted(lines * 2),
        "both transactions",
    )
    shown = consume(cat, bootstrap, topic, "-X", "isolation.level=read_committed")
    assert sorted(shown) == sorted(lines * 2)
