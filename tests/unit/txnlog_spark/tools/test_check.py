"""The words and the exit codes of `check`, without Java, Python processes or brokers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from txnlog_kafka.host.security import read_security
from txnlog_kafka.operations.dry_run import BrokerAnswer, Probe, TopicAccess
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_spark.commit.judgement import Decision
from txnlog_spark.tools import check, cli
from txnlog_spark.tools.check_cluster import broker_items, grant_items, topic_items
from txnlog_spark.tools.check_item import (
    GROUP,
    OK,
    REFUSED,
    TOPIC,
    TRANSACTIONAL_ID,
    WARNING,
    Grant,
    Item,
    Job,
)
from txnlog_spark.tools.check_machine import (
    NEEDED,
    check_java,
    check_python,
    check_staging,
    run_command,
)
from txnlog_spark.tools.check_query import Stand, needed_grants, new_query_item, words_of

HERE = list(sys.version_info[:2])
JOB = Job(inputs=("in",), outputs=("out",), group="g", bootstrap_servers="b:9092")
ALL = frozenset({"READ", "WRITE", "CREATE"})


def grants(job: Job) -> list[str]:
    return [str(each) for each in needed_grants(job, Stand())]


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("states", "code"), [([OK], 0), ([OK, WARNING], 0), ([REFUSED, OK, REFUSED], 1)]
)
def test_it_ends_with_1_if_anything_is_refused_and_shows_all(monkeypatch, capsys, states, code):
    items = [Item(f"n{i}", state, "text", f"do {i}") for i, state in enumerate(states)]
    monkeypatch.setattr(cli, "look_at_all", lambda options: iter(items))
    assert cli.main(["check", "--bootstrap-server", "b:1"]) == code
    *lines, result = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "$" not in line] == states
    assert [f"         $ do {i}" in lines for i in range(len(items))] == [s != OK for s in states]
    assert result == ("2 refused: see above" if code else "nothing is refused: the job can start")
    assert cli.main(["check", "--bootstrap-server", "b:1", "--json"]) == code
    shown = json.loads(capsys.readouterr().out)
    assert (shown["refused"], len(shown["items"])) == (states.count(REFUSED), len(items))


def test_wrong_options_of_the_brokers_are_one_refusal_of_several(monkeypatch, tmp_path, capsys):
    config = tmp_path / "client.properties"
    config.write_text("nosuch=1\n")
    monkeypatch.setattr(check, "check_machine", lambda environment: [Item("Java", REFUSED, "old")])
    words = ["check", "--bootstrap-server", "b:1", "--command-config", str(config)]
    assert cli.main(words) == 1
    said = capsys.readouterr().out
    assert "refused  Java: old" in said
    assert "refused  --command-config: [TXNLOG_OPTION] option kafka.nosuch" in said


# ------------------------------------------------------------------ the machine


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ('openjdk version "17.0.9" 2023-10-17', OK),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25" 2025-09-16', OK),
        ('java version "1.8.0_381"', REFUSED),
        ("[Errno 2] No such file or directory: 'java'", REFUSED),
        ("", REFUSED),
    ],
)
def test_java(said: str, state: str) -> None:
    item = check_java({"JAVA_HOME": "/java"}, lambda words: said)
    assert (item.state, "/java/bin/java" in item.text) == (state, True)
    assert bool(item.command) == (state == REFUSED)


def python(said: str, **environment: str) -> tuple[list[Item], list[str]]:
    """The items, and the words that were run."""
    ran: list[str] = []

    def run(words: Sequence[str]) -> str:
        ran.extend(words)
        return said

    return list(check_python(environment, run)), ran


def test_the_python_of_workers_is_the_one_that_spark_takes() -> None:
    good = json.dumps([HERE, "/p", {}])
    assert python(good)[1][0] == "python3"
    assert python(good, PYSPARK_PYTHON="a")[1][0] == "a"
    assert python(good, PYSPARK_PYTHON="a", PYSPARK_DRIVER_PYTHON="b")[1][0] == "b"
    ((item,), _) = python(f"a warning\n{good}")
    assert item.state == OK


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (json.dumps([[3, 8], "/p", {}]), "is 3.8, and the driver's is"),
        (json.dumps([HERE, "/p", {"pyarrow": "ModuleNotFoundError: x"}]), "cannot import pyarrow"),
        ("[Errno 2] No such file", "does not run: [Errno 2]"),
        ("", "does not run: no output"),
    ],
)
def test_a_python_that_lacks_something_is_refused_with_the_setting(said: str, text: str) -> None:
    ((item,), _) = python(said, PYSPARK_PYTHON="/other")
    assert (item.state, text in item.text) == (REFUSED, True)
    assert item.command == f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"


def test_formats_whose_packages_are_missing_are_a_warning() -> None:
    (_, formats), _ = python(json.dumps([HERE, "/p", {"fastavro": "x", "google.protobuf": "x"}]))
    assert formats.state == WARNING
    assert formats.command == "/p -m pip install 'txnlog_spark[avro,protobuf]'"


def test_this_python_has_what_is_needed() -> None:
    item, *_ = check_python({"PYSPARK_PYTHON": sys.executable}, run_command)
    assert item.state == OK, item
    assert "txnlog_spark" in NEEDED


def test_the_staging_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert check_staging().state == OK
    monkeypatch.setenv("TMPDIR", "/tmp/nosuch")
    assert check_staging().state == REFUSED
    monkeypatch.setenv("TMPDIR", "/tmp/" + "n" * 100)  # the product takes /tmp then
    assert "/tmp (" in check_staging().text


# ------------------------------------------------------------------ the cluster


def test_a_broker_whose_advertised_listener_does_not_answer_is_refused() -> None:
    answers = [
        BrokerAnswer(0, "a:1", transaction_version=2),
        BrokerAnswer(1, "b:2", unanswered="refused"),
        BrokerAnswer(2, "c:3", missing_apis=("EndTxn",)),
    ]
    silent, old, good = broker_items("C", answers)
    assert (silent.state, silent.command) == (REFUSED, "nc -vz b 2")
    assert (old.state, "lacks EndTxn" in old.text) == (REFUSED, True)
    assert good.text == "1 of cluster C, with transactions (transaction.version 2)"


@pytest.mark.parametrize(
    ("access", "states"),
    [
        (TopicAccess(0, 3, ALL), [OK, OK]),
        (TopicAccess(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, ALL), [REFUSED, WARNING]),
        (
            TopicAccess(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, frozenset({"WRITE"})),
            [REFUSED, REFUSED],
        ),
        (TopicAccess(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0, None), [WARNING, WARNING]),
        (TopicAccess(ErrorCode.INVALID_TOPIC_EXCEPTION, 0, ALL), [REFUSED, REFUSED]),
    ],
)
def test_topics(access: TopicAccess, states: list[str]) -> None:
    items = list(topic_items(JOB, {"in": access, "out": access}))
    assert [each.state for each in items] == states
    assert all(each.command for each in items if each.state == REFUSED)


def test_the_grants_are_those_of_the_documented_table() -> None:
    assert grants(JOB) == [
        "WRITE on transactional id 'txnlog-g'",
        "WRITE on topic 'out'",
        "READ on topic 'in'",
        "READ on group 'g'",
        "READ on groups 'g.progress.*'",
    ]
    assert grants(Job(inputs=("in",), outputs=("out",))) == [
        "WRITE on transactional ids 'txnlog-*'",
        "WRITE on topic 'out'",
        "READ on topic 'in'",
        "READ on groups 'txnlog-*'",
    ]
    assert grants(Job(outputs=("out",), group="g", transactional_id="t")) == [
        "WRITE on transactional id 't'",
        "WRITE on topic 'out'",
        "READ on topic 'out'",
        "READ on group 'g'",
        "READ on groups 'g.progress.*'",
    ]
    assert grants(Job(inputs=("in",), group="g")) == ["READ on topic 'in'", "DESCRIBE on group 'g'"]


def test_each_missing_grant_has_its_command_and_untold_ones_are_warned_of() -> None:
    wanted = [
        Grant(TRANSACTIONAL_ID, "t", "WRITE"),
        Grant(TOPIC, "in", "READ"),
        Grant(TOPIC, "out", "WRITE"),
        Grant(GROUP, "g.progress.q", "READ", "g.progress."),
        Grant(GROUP, "g", "READ"),
    ]
    answers = (False, True, None, False, None)
    granted = dict(zip(wanted, answers, strict=True))
    first, untold, second, unanswered, good = grant_items(JOB, granted)
    common = "kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:ANONYMOUS"
    assert first.command == f"{common} --operation Write --transactional-id t"
    end = "--operation Read --group g.progress. --resource-pattern-type prefixed"
    assert second.command == f"{common} {end}"
    assert (untold.state, unanswered.state) == (WARNING, WARNING)
    assert good.text == "READ on topic 'in'"


def test_answers_of_brokers_as_grants() -> None:
    refused, elsewhere = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.NOT_COORDINATOR
    assert Probe(frozenset()).is_granted is None
    assert Probe(frozenset({refused})).is_granted is False
    assert Probe(frozenset({elsewhere})).is_granted is True
    assert not Probe(frozenset({refused, elsewhere})).has_coordinator
    assert Probe(frozenset({elsewhere, ErrorCode.UNKNOWN_MEMBER_ID})).has_coordinator
    hidden = TopicAccess(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0, None)
    found = [hidden.allows("READ"), TopicAccess(0, 1, None).allows("READ")]
    found += [TopicAccess(0, 1, frozenset({"READ"})).allows(each) for each in ("READ", "WRITE")]
    assert found == [False, None, True, False]


def test_the_user_is_the_one_of_the_login() -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al ice" '
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": login + 'password="p";',
    }
    job = Job(security=read_security(options))
    assert job.principal == "User:al ice"
    said = Grant(GROUP, "g", "READ").command(job)
    assert "--command-config admin.properties --add --allow-principal 'User:al ice' " in said
    assert Job(security=read_security({"security.protocol": "SSL"})).principal == "User:NAME"


# ------------------------------------------------------------------ the next start


def test_a_new_query() -> None:
    assert new_query_item(Job(), {}).state == WARNING
    assert "committedOrEarliest" in new_query_item(JOB, {}).text


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Decision.SKIP, "is committed: Spark runs it again, and the sink skips it"),
        (Decision.PASS, "are committed under another number"),
        (Decision.DO, "was planned and not committed: it will be done"),
    ],
)
def test_each_decision_of_the_commit_has_words(decision: Decision, said: str) -> None:
    assert said in words_of(decision, 2, is_planned=True, was_begun=False)
