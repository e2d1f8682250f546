"""`python -m broker_sim topics | groups | transactions | dump` against both brokers.

The commands are broker_sim's; the brokers and their files are also Apache Kafka's.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from support.brokers.hanging import VERIFICATION_OFF, plant_hanging_transaction
from support.brokers.probe import ports_of, wait_for, wait_until
from support.clients.librdkafka import consumer, plain_producer
from support.kafka.java_tools import DUMP_LOG
from support.raw.raw import RawProducer
from support.raw.raw_admin import (
    BROKER,
    DELETE,
    SET,
    change_configs,
    describe_configs,
    make_topic,
    node_ids,
)
from support.raw.routed import connect

from broker_sim.cli.cluster import MAY_BE_DONE
from broker_sim.cli.main import main

FILES = pytest.mark.one_broker("looks at one broker's files")
ONCE = pytest.mark.no_kill("a change whose answer is lost is refused when it is asked for again")


class NotAnswered(Exception):
    """A command asks for a change once, and its broker died."""


class Commands:
    """Runs commands on a broker, or a cluster."""

    def __init__(self, bootstrap: str, capsys) -> None:
        self._server = ["--bootstrap-server", bootstrap]
        self._capsys = capsys
        self.error = ""

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and standard output; standard error goes to `error`."""
        self._capsys.readouterr()
        code = main([*words[:2], *self._server, *words[2:]])
        out, self.error = self._capsys.readouterr()
        if MAY_BE_DONE in self.error:
            raise NotAnswered(self.error)
        return code, out

    def json(self, *words: str, code: int = 0):
        """The output as a value, of a command that ends with this code."""
        found, out = self.run(*words, "--json")
        assert found == code, (words, out, self.error)
        return json.loads(out) if out else []

    def refused(self, *words: str) -> str:
        """Run a command that the broker refuses; return its error."""
        assert self.run(*words)[0] == 1, words
        return self.error


@pytest.fixture
def commands(bootstrap, capsys) -> Commands:
    """The commands, on each broker."""
    return Commands(bootstrap, capsys)


def column(rows: list[dict], *names: str) -> list:
    """Return columns of a table; several columns as tuples."""
    found = [tuple(row[name] for name in names) for row in rows]
    return found if len(names) > 1 else [each[0] for each in found]


# --------------------------------------------------------------------------- topics


@ONCE
def test_topics_are_made_shown_changed_and_removed(commands, bootstrap, unique):
    replicas = len(ports_of(bootstrap))
    topic = unique("made")
    create = ("topics", "create", "--topic", topic)
    assert commands.json(*create, "--partitions", "2", "--config", "segment.ms=60000") == [
        {"topic": topic, "done": "created"}
    ]
    assert commands.json(*create, "--if-not-exists") == [{"topic": topic, "done": "exists"}]
    said = commands.refused(*create)
    assert f"creating topic '{topic}': TOPIC_ALREADY_EXISTS" in said
    assert "--if-not-exists" in said
    wait_until(lambda: topic in column(commands.json("topics", "list"), "topic"), "the topic")

    altered = commands.json(
        "topics", "alter", "--topic", topic, "--partitions", "3", "--config", "retention.ms=5000",
        "--delete-config", "segment.ms",
    )  # fmt: skip
    assert column(altered, "done") == ["partitions=3", "retention.ms=5000", "segment.ms deleted"]

    def described() -> tuple:
        found = commands.json("topics", "describe", "--topic", topic)
        (row,) = found["topics"]
        leaders = column(found["partitions"], "partition", "leader")
        return row["partitions"], row["replication_factor"], row["configs"], len(leaders)

    wait_until(lambda: described() == (3, replicas, ["retention.ms=5000"], 3), "the changes")
    assert "INVALID_PARTITIONS" in commands.refused(
        "topics", "alter", "--topic", topic, "--partitions", "3"
    )
    assert column(commands.json("topics", "delete", "--topic", topic), "done") == ["deleted"]
    missing = ("topics", "delete", "--topic", topic)
    assert f"'{topic}': UNKNOWN_TOPIC_OR_PARTITION" in commands.refused(*missing)
    assert column(commands.json(*missing, "--if-exists"), "done") == ["missing"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--config", "no.such=1"], "INVALID_CONFIG"),
        (["--replication-factor", "7"], "INVALID_REPLICATION_FACTOR"),
        (["--partitions", "20000"], "POLICY_VIOLATION"),
    ],
)
def test_topics_that_cannot_be_are_refused_by_name_and_error(commands, unique, options, error):
    topic = unique("refused")
    said = commands.refused("topics", "create", "--topic", topic, *options)
    assert f"creating topic '{topic}': {error}" in said
    assert "UNKNOWN_TOPIC_OR_PARTITION" in commands.refused("topics", "describe", "--topic", topic)


def test_internal_topics_may_be_left_out(commands):
    commands.json("groups", "list")
    listed = column(commands.json("topics", "list", "--exclude-internal"), "topic")
    assert not {"__consumer_offsets", "__transaction_state"} & set(listed)


# --------------------------------------------------------------------------- groups


@pytest.fixture
def consumed(broker, unique):
    """(topic, group, consumer): five records in each of two partitions, three read of each."""
    topic, group = unique("read"), unique("group")
    with connect(broker) as connection:
        make_topic(connection, topic, 2)
    producer = plain_producer(broker.bootstrap_servers)
    for number in range(10):
        producer.produce(topic, b"v", partition=number % 2, timestamp=1_700_000_000_000 + number)
    assert producer.flush(30) == 0
    reader = consumer(broker.bootstrap_servers, group, client_id="reader")
    reader.subscribe([topic])
    wait_until(lambda: reader.poll(0.5) is not None, "a record")
    places = [TopicPartition(topic, partition, 3) for partition in range(2)]
    reader.commit(offsets=places, asynchronous=False)
    yield topic, group, reader
    reader.close()


def test_a_groups_offsets_lag_and_members_are_shown(commands, consumed):
    topic, group, _ = consumed

    def listed() -> list:
        return column(commands.json("groups", "list"), "group", "state")

    # Where a coordinator moves, its groups are in no broker's list for a moment.
    wait_until(lambda: (group, "Stable") in listed(), "the group in a list")
    assert group not in column(commands.json("groups", "list", "--state", "Empty"), "group")
    rows = commands.json("groups", "describe", "--group", group)
    names = ("topic", "partition", "current_offset", "log_end_offset", "lag", "client_id")
    assert column(rows, *names) == [(topic, number, 3, 5, 2, "reader") for number in range(2)]
    (member,) = commands.json("groups", "describe", "--group", group, "--members")
    assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
    (state,) = commands.json("groups", "describe", "--group", group, "--state")
    assert (state["state"], state["members"]) == ("Stable", 1)
    said = commands.refused("groups", "describe", "--group", "nobody")
    assert "describing group 'nobody': GROUP_ID_NOT_FOUND" in said


def test_the_offsets_of_a_group_with_members_stay(commands, consumed):
    topic, group, _ = consumed
    reset = ("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
    assert "it is Stable - stop its members" in commands.refused(*reset, "--execute")
    assert "NON_EMPTY_GROUP" in commands.refused("groups", "delete", "--group", group)
    said = commands.refused("groups", "delete-offsets", "--group", group, "--topic", topic)
    assert f"{topic}-1: GROUP_SUBSCRIBED_TO_TOPIC" in said


RESETS = {
    "earliest": (["--to-earliest"], [0, 0]),
    "latest": (["--to-latest"], [5, 5]),
    "current": (["--to-current"], [3, 3]),
    "offset": (["--to-offset", "4"], [4, 4]),
    "offset over the end": (["--to-offset", "40"], [5, 5]),
    "back": (["--shift-by", "-2"], [1, 1]),
    "back over the start": (["--shift-by", "-20"], [0, 0]),
    "time": (["--to-datetime", "2023-11-14T22:13:20.003Z"], [2, 1]),
    "time after all": (["--to-datetime", "2033-01-01T00:00:00Z"], [5, 5]),
}


def test_offsets_are_reset_shown_first_and_forgotten(commands, consumed):
    topic, group, reader = consumed
    reader.close()
    reset = ("groups", "reset-offsets", "--group", group)
    wait_until(
        lambda: commands.json("groups", "describe", "--group", group, "--state")[0]["members"] == 0,
        "the member to be gone",
    )
    found = {
        case: column(commands.json(*reset, "--all-topics", *options), "new_offset")
        for case, (options, _) in RESETS.items()
    }
    assert found == {case: offsets for case, (_, offsets) in RESETS.items()}
    offsets = ("groups", "describe", "--group", group)
    assert column(commands.json(*offsets), "current_offset") == [3, 3], "nothing was executed"
    commands.json(*reset, "--topic", f"{topic}:1", "--to-earliest", "--execute")
    assert column(commands.json(*offsets), "current_offset", "lag") == [(3, 2), (0, 5)]
    forget = ("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert column(commands.json(*forget), "partition") == [0]
    assert column(commands.json(*offsets), "partition") == [1]
    assert column(commands.json("groups", "delete", "--group", group), "done") == ["deleted"]
    assert "GROUP_ID_NOT_FOUND" in commands.refused("groups", "delete", "--group", group)
    assert "has 2 partitions, no --partition 7" in commands.refused(
        *reset, "--topic", f"{topic}:7", "--to-latest"
    )


# --------------------------------------------------------------------------- transactions


def test_an_open_transaction_is_shown_and_not_taken_for_hanging(commands, broker, unique):
    topic, name = unique("written"), unique("open")
    with connect(broker) as connection:
        make_topic(connection, topic)
        producer = RawProducer(connection, name)
        assert (producer.find_coordinator(), producer.init()) == ("NONE", "NONE")
        assert producer.add_partitions(topic, 0) == "NONE"
        assert producer.produce(topic, 0, "open") == "NONE"
        ongoing = ("transactions", "list", "--state", "Ongoing")
        wait_until(
            lambda: name in column(commands.json(*ongoing), "transactional_id"), "it in a list"
        )
        (row,) = commands.json("transactions", "describe", "--transactional-id", name)
        assert (row["producer_id"], row["producer_epoch"]) == producer.identity
        assert (row["transaction_state"], row["topic_partitions"]) == ("Ongoing", [f"{topic}-0"])
        (known,) = commands.json(
            "transactions", "describe-producers", "--topic", topic, "--partition", "0"
        )
        assert (known["producer_id"], known["current_transaction_start_offset"]) == (
            producer.producer_id,
            0,
        )
        hanging = ("transactions", "find-hanging", "--topic", topic)
        assert commands.json(*hanging, "--max-transaction-timeout", "0") == []
        abort = ("transactions", "abort", "--topic", topic, "--partition", "0")
        said = commands.refused(*abort, "--start-offset", "0")
        assert f"the coordinator of '{name}' knows this transaction" in said
        numbers = ("--producer-id", str(producer.producer_id), "--coordinator-epoch", "0")
        epoch = ("--producer-epoch", str(producer.identity[1]))
        assert "--force aborts it" in commands.refused(*abort, *numbers, *epoch)
        done = commands.json(*abort, "--start-offset", "0", "--force")
        assert column(done, "done") == ["aborted"]
        assert producer.end(commit=False) == "NONE"
    unknown = ("transactions", "describe", "--transactional-id", "never-was")
    assert "'never-was': TRANSACTIONAL_ID_NOT_FOUND" in commands.refused(*unknown)


@pytest.fixture
def unverified(broker) -> Iterator[None]:
    """Switches the check off that makes hanging transactions impossible (KIP-890)."""
    (option,) = VERIFICATION_OFF
    with connect(broker) as connection:
        node = str(node_ids(connection)[0])

        def change(*words: int | str | None) -> None:
            assert change_configs(connection, (BROKER, "", [(option, *words)])) == ["NONE"]

        def value() -> str:
            _, found = describe_configs(connection, BROKER, node, [option])
            return found[option].value

        change(SET, "false")
        wait_for(value, "false")
        yield
        change(DELETE, None)
        wait_for(value, "true")


@pytest.mark.usefixtures("unverified")
def test_a_hanging_transaction_is_found_and_aborted_by_hand(commands, broker, unique):
    topic = unique("stuck")
    with connect(broker) as connection:
        make_topic(connection, topic, 2)
    hangs = plant_hanging_transaction(broker, topic, 1, unique("lost"))
    (row,) = commands.json("transactions", "find-hanging", "--topic", topic)
    assert (row["topic"], row["partition"], row["start_offset"]) == (topic, 1, 0)
    assert (row["producer_id"], row["producer_epoch"]) == (hangs.producer_id, hangs.producer_epoch)
    place = ("--topic", topic, "--partition", "1")
    said = commands.refused("transactions", "abort", *place, "--start-offset", "9")
    assert f"no transaction begins at --start-offset 9 in {topic}-1" in said
    done = commands.json("transactions", "abort", *place, "--start-offset", "0")
    assert column(done, "done") == ["aborted"]
    assert commands.json("transactions", "find-hanging", "--topic", topic) == []
    said = commands.refused("transactions", "find-hanging", "--topic", topic, "--partition", "8")
    assert f"topic '{topic}' has 2 partitions, no --partition 8" in said


# --------------------------------------------------------------------------- dump


def told(out: str, kind: str) -> list[dict]:
    """Items of a dump in JSON."""
    return [item for item in map(json.loads, out.splitlines()) if item["kind"] == kind]


BATCH_FIELDS = ("baseOffset", "lastOffset", "count", "producerId", "producerEpoch", "position",
                "size", "isTransactional", "isControl", "compresscodec", "crc")  # fmt: skip


@FILES
def test_a_dump_says_of_both_brokers_files_what_kafkas_own_says(
    broker, java, unique, tmp_path, capsys
):
    topic = unique("dumped")
    with connect(broker) as connection:
        # The records are of 2023 and the markers of now: one segment is to hold both.
        make_topic(connection, topic, segment_ms=str(2**62))
        producer = RawProducer(connection, unique("txn"))
        assert (producer.find_coordinator(), producer.init()) == ("NONE", "NONE")
        for commit in (False, True):
            assert producer.add_partitions(topic, 0) == "NONE"
            assert producer.produce(topic, 0, "a", "b") == "NONE"
            assert producer.end(commit=commit) == "NONE"
    squeezed = plain_producer(broker.bootstrap_servers, compression_type="zstd")
    for number in range(50):
        squeezed.produce(topic, b"value" * 20, key=b"%d" % number)
    assert squeezed.flush(30) == 0
    # A copy: Kafka's own tool insists on the end of a file that a broker still writes.
    folder = tmp_path / f"{topic}-0"
    wait_until(lambda: len(marks(broker.data_dir / f"{topic}-0", capsys)) == 2, "both markers")
    shutil.copytree(broker.data_dir / f"{topic}-0", folder)
    log = folder / "00000000000000000000.log"
    assert main(["dump", str(log), "--deep", "--json"]) == 0
    out = capsys.readouterr().out
    reference = java.ok(DUMP_LOG, "--deep-iteration", "--files", log).out
    batches = [
        dict(re.findall(r"(\w+): (\S+)", line))
        for line in reference.splitlines()
        if line.startswith("baseOffset")
    ]
    ours = told(out, "batch")
    assert [[str(each[f]).lower() for f in BATCH_FIELDS] for each in ours] == [
        [each[f].lower() for f in BATCH_FIELDS] for each in batches
    ]
    offsets = re.findall(r"^\| offset: (\d+)", reference, re.MULTILINE)
    assert [str(each["offset"]) for each in told(out, "record")] == offsets
    markers = re.findall(r"endTxnMarker: (\w+)", reference)
    assert [e["endTxnMarker"] for e in told(out, "record") if "endTxnMarker" in e] == markers
    assert markers == ["ABORT", "COMMIT"]
    assert main(["dump", str(folder / "00000000000000000000.txnindex"), "--json"]) == 0
    (aborted,) = told(capsys.readouterr().out, "entry")
    assert (aborted["producerId"], aborted["firstOffset"]) == (producer.producer_id, 0)


def marks(folder, capsys) -> list[dict]:
    """The markers in a partition's first segment."""
    capsys.readouterr()
    main(["dump", str(folder / "00000000000000000000.log"), "--deep", "--json"])
    return [e for e in told(capsys.readouterr().out, "record") if "endTxnMarker" in e]


@FILES
def test_coordinators_logs_are_decoded_by_the_name_of_their_folder(
    commands, broker, consumed, unique, capsys
):
    _, group, _ = consumed
    name = unique("told")
    with connect(broker) as connection:
        producer = RawProducer(connection, name)
        assert (producer.find_coordinator(), producer.init(77_000)) == ("NONE", "NONE")
    del commands
    capsys.readouterr()
    folders = [*broker.data_dir.glob("__transaction_state-*")]
    folders += broker.data_dir.glob("__consumer_offsets-*")
    main(["dump", "--deep", "--json", *map(str, folders)])
    records = told(capsys.readouterr().out, "record")
    (state,) = [
        each["payload"]
        for each in records
        if isinstance(each.get("key"), dict) and each["key"].get("transactional_id") == name
    ]
    assert (state["state"], state["timeout_ms"]) == ("EMPTY", 77_000)
    committed = [
        (each["key"]["partition"], each["payload"]["committed_offset"])
        for each in records
        if isinstance(each.get("key"), dict)
        and each["key"].get("group_id") == group
        and "topic" in each["key"]
    ]
    assert sorted(committed) == [(0, 3), (1, 3)]


@FILES
def test_a_whole_data_directory_is_read_without_finding_damage(broker, capsys):
    """A broker is running on it: only the tail of a file may be unfinished, and nothing is."""
    code = main(["dump", str(broker.data_dir / "__cluster_metadata-0"), "--deep", "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert told(out, "record")
    assert main(["dump", str(broker.data_dir / "meta.properties")]) == 0
    assert "cluster.id=" in capsys.readouterr().out
