"""kcat, the C command line client, used from a shell as one uses it for Kafka, on both brokers."""

from __future__ import annotations

import json
import queue
import threading

import pytest
from support.brokers.probe import wait_until
from support.clients.kcat import Kcat, kcat
from support.clients.librdkafka import (
    create_topic,
    plain_producer,
    produce_values,
    transactional,
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
    """What a consumer prints from the start (unless told otherwise) until the end (-e)."""
    start = () if "-o" in arguments else ("-o", "beginning")
    return cat.output(bootstrap, "-C", "-q", "-e", "-t", topic, *start, *arguments).splitlines()


@pytest.mark.no_kill("tells which brokers are there")
def test_the_metadata_list_names_brokers_topics_and_partitions(bootstrap, unique, cat):
    topic = create_topic(bootstrap, unique("listed"), 3)
    text = cat.output(bootstrap, "-L")
    addresses = bootstrap.split(",")
    assert f"{len(addresses)} brokers:" in text
    assert all(f"at {each}" in text for each in addresses)
    assert f'topic "{topic}" with 3 partitions:' in text
    one = cat.output(bootstrap, "-L", "-t", topic)
    for number in range(3):
        assert f"partition {number}, leader" in one


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


def test_the_format_string_shows_every_field_of_a_record(bootstrap, topic, cat):
    cat.run(bootstrap, "-P", "-t", topic, "-k", "key", "-H", "h=x", stdin="value\n")
    shown = consume(cat, bootstrap, topic, "-f", "%t|%p|%o|%k|%K|%s|%S|%h|%T\n")
    *fields, timestamp = shown[0].split("|")
    assert fields == [topic, "0", "0", "key", "3", "value", "5", "h=x"]
    assert int(timestamp) > FIRST_MS


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


@pytest.mark.parametrize(
    "asked, expected",
    [("-2", "0"), ("-1", "10"), (f"{FIRST_MS + 3_001}", "4"), (f"{FIRST_MS + 60_000}", "-1")],
)
def test_offsets_are_queried_by_timestamp(bootstrap, topic, cat, asked, expected):
    produce_timed(bootstrap, topic, 10)
    answer = cat.output(bootstrap, "-Q", "-t", f"{topic}:0:{asked}").strip()
    assert answer == f"{topic} [0] offset {expected}"


def produce_timed(bootstrap: str, topic: str, count: int) -> None:
    """Records one second apart from FIRST_MS on."""
    made = plain_producer(bootstrap)
    for number in range(count):
        made.produce(topic, f"{number}".encode(), timestamp=FIRST_MS + number * 1000)
    assert made.flush(TIMEOUT_S) == 0


def test_records_go_to_the_partition_that_was_named(bootstrap, unique, cat):
    topic = create_topic(bootstrap, unique("parts"), 3)
    for number in range(3):
        cat.run(bootstrap, "-P", "-t", topic, "-p", str(number), stdin=f"of {number}\n")
    for number in range(3):
        shown = consume(cat, bootstrap, topic, "-p", str(number), "-f", "%p %o %s\n")
        assert shown == [f"{number} 0 of {number}"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_kcat_compresses_kcat_and_another_client_read(bootstrap, topic, cat, codec):
    values = [f"{number:03} " + "same " * 50 for number in range(200)]
    cat.run(bootstrap, "-P", "-t", topic, "-z", codec, stdin="\n".join(values) + "\n")
    assert consume(cat, bootstrap, topic) == values
    assert values_of(read_with_librdkafka(bootstrap, topic)) == values


def test_the_end_is_reached_when_only_aborted_records_and_markers_trail(bootstrap, topic, cat):
    made = transactional(bootstrap, f"txn-{topic}")
    for value, commits in (("good", True), ("bad", False), ("worse", False)):
        made.begin_transaction()
        made.produce(topic, value.encode())
        made.flush(TIMEOUT_S)
        (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)
    committed = ("-X", "isolation.level=read_committed")
    wait_until(
        lambda: consume(cat, bootstrap, topic, *committed, "-f", "%o %s\n") == ["0 good"],
        "the committed record and the end",
    )
    uncommitted = ("-X", "isolation.level=read_uncommitted")
    shown = consume(cat, bootstrap, topic, *uncommitted, "-f", "%o %s\n")
    assert shown == ["0 good", "2 bad", "4 worse"]
    # From inside the trailing part the end comes at once, with nothing before it.
    for start in (1, 3, 5):
        assert consume(cat, bootstrap, topic, *committed, "-o", str(start)) == []


def test_the_end_at_read_committed_is_the_last_stable_offset(bootstrap, topic, cat):
    produce_values(bootstrap, topic, ["before"])
    made = transactional(bootstrap, f"txn-{topic}")
    made.begin_transaction()
    made.produce(topic, b"open")
    made.flush(TIMEOUT_S)
    produce_values(bootstrap, topic, ["after"])
    assert consume(cat, bootstrap, topic, "-X", "isolation.level=read_committed") == ["before"]
    everything = consume(cat, bootstrap, topic, "-X", "isolation.level=read_uncommitted")
    assert everything == ["before", "open", "after"]
    made.abort_transaction(TIMEOUT_S)


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


def test_two_members_of_a_group_share_what_comes_and_commit_it(bootstrap, unique, cat):
    topic = create_topic(bootstrap, unique("group"), 4)
    group = unique("group")
    lines: queue.Queue[tuple[int, str]] = queue.Queue()
    settings = ["-X", "partition.assignment.strategy=range", "-X", "auto.offset.reset=earliest"]
    members = [
        cat.start(bootstrap, "-G", group, "-u", *settings, "-f", "%p %s\n", topic) for _ in range(2)
    ]
    assigned: queue.Queue[tuple[int, str]] = queue.Queue()
    for number, member in enumerate(members):
        pass_on(member.stdout, number, lines)
        pass_on(member.stderr, number, assigned)
    try:
        shares: dict[int, str] = {}

        def shared_out() -> bool:
            while not assigned.empty():
                number, line = assigned.get()
                if "assigned:" in line:
                    shares[number] = line.split("assigned:")[1]
            return sorted(share.count("[") for share in shares.values()) == [2, 2]

        wait_until(shared_out, "two partitions each")
        for number in range(4):
            produce_values(bootstrap, topic, [f"of {number}"], partition=number)
        got = [lines.get(timeout=TIMEOUT_S) for _ in range(4)]
        assert sorted(text for _, text in got) == [f"{number} of {number}" for number in range(4)]
        for number, text in got:
            assert f"[{text[0]}]" in shares[number]
    finally:
        for member in members:
            member.terminate()
            member.wait(TIMEOUT_S)
    # Stopped members have committed: the next one starts behind them.
    produce_values(bootstrap, topic, ["late"], partition=3)
    arguments = ("-G", group, "-q", "-c", "1", *settings, "-f", "%p %s\n", topic)
    assert cat.output(bootstrap, *arguments) == "3 late\n"


def pass_on(stream, number: int, lines: queue.Queue) -> None:
    """Put each line of a member's output into the queue, in a thread."""

    def read() -> None:
        for line in stream:
            lines.put((number, line.rstrip("\n")))

    threading.Thread(target=read, daemon=True).start()
