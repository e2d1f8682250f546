"""`python -m txnlog_spark check`: all that a first start would stumble over, named at once."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.brokers.secured_kafka import SECURED_BROKERS, Acl
from support.clients.librdkafka import create_topic
from support.harness.availability import started_when_asked
from support.query.checkpoint_files import write_begun
from support.query.checkpoint_query import Query

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_spark.tools import check
from txnlog_spark.tools.check_item import Item
from txnlog_spark.tools.check_machine import check_machine, run_command
from txnlog_spark.tools.cli import main

WEEKLY_ON_KAFKA = [
    "broker_sim",
    pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.weekly(day=3)]),
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Start a broker of each kind with an authorizer, when it is first asked for."""
    with started_when_asked(SECURED_BROKERS, tmp_path_factory.mktemp) as broker_of:
        yield broker_of


@functools.cache
def said(words: tuple[str, ...]) -> str:
    """Run a command of the machine once: a Java and a Python take half a second of a processor."""
    return run_command(words)


@pytest.fixture(autouse=True)
def machine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_at(environment: Mapping[str, str]) -> Iterator[Item]:
        return check_machine(environment, lambda words: said(tuple(words)))

    monkeypatch.setattr(check, "check_machine", looked_at)


class Tool:
    """Runs the command."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: str, code: int) -> list[dict[str, str]]:
        """The items that it prints."""
        self._capsys.readouterr()
        found = main(["check", *words, "--json"])
        out, _ = self._capsys.readouterr()
        assert found == code, out
        return json.loads(out)["items"]

    def next_start(self, query: Query, *words: str, state: str = "ok") -> str:
        """Return the text about the query's next start."""
        where = ["--bootstrap-server", query.bootstrap, "--checkpoint", str(query.checkpoint)]
        items = self.run(*where, *words, code=int(state == "refused"))
        (item,) = [each for each in items if each["name"] == "next start"]
        assert item["state"] == state, item
        return item["text"]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(capsys)


def granted_by(command: str) -> Acl:
    """The ACL that a printed call of kafka-acls.sh makes."""
    script, *words = shlex.split(command)
    assert script == "kafka-acls.sh"
    assert words[words.index("--allow-principal") + 1] == "User:ANONYMOUS"
    operation = words[words.index("--operation") + 1].upper()
    (resource,) = {"--topic", "--group", "--transactional-id"} & set(words)
    name = words[words.index(resource) + 1] + "*" * ("prefixed" in words)
    return Acl(operation, resource[2:].replace("-", "_").upper(), name)


@pytest.mark.live
@pytest.mark.parametrize("broker_name", WEEKLY_ON_KAFKA, indirect=True)
@pytest.mark.parametrize("has_group", [True, False])
def test_all_missing_grants_are_named_at_once_and_as_printed_they_are_enough(
    broker_name, started, tool: Tool, unique, tmp_path: Path, has_group: bool
) -> None:
    kafka, group = started(broker_name), unique("group")
    source = create_topic(kafka.bootstrap_servers, unique("in"), 2)
    output = create_topic(kafka.bootstrap_servers, unique("out"), 1)
    words = ["--bootstrap-server", kafka.bootstrap_servers, "--input", source, "--output", output]
    words += ["--checkpoint", str(tmp_path / "new")]
    words += ["--group", group] if has_group else []
    with kafka.security.only([]):
        items = tool.run(*words, code=1)
    missing = [each for each in items if each["name"] == "grant"]
    wanted = [Acl("WRITE", "TOPIC", output), Acl("READ", "TOPIC", source)]
    if has_group:
        wanted.append(Acl("WRITE", "TRANSACTIONAL_ID", f"txnlog-{group}"))
        wanted += [Acl("READ", "GROUP", name) for name in (group, f"{group}.progress.*")]
    else:
        wanted += [Acl("WRITE", "TRANSACTIONAL_ID", "txnlog-*"), Acl("READ", "GROUP", "txnlog-*")]
    acls = [granted_by(each["command"]) for each in missing]
    assert sorted(acls) == sorted(wanted)
    assert {each["state"] for each in missing} == {"refused"}
    with kafka.security.only(acls):
        tool.run(*words, code=0)
    for missed in acls:
        with kafka.security.only([each for each in acls if each != missed]):
            left = [each for each in tool.run(*words, code=1) if each["name"] == "grant"]
        assert [granted_by(each["command"]) for each in left] == [missed]


def topics_of(client: Client) -> set[str]:
    """Return all topics, also the internal ones."""
    client.run(refresh_metadata(client.session, None))
    return set(client.session.cluster.topics)


def test_nothing_is_created(new_broker, tool: Tool, tmp_path: Path) -> None:
    """The tool creates neither the topics that it checks nor a coordinator's topics."""
    bootstrap = new_broker().bootstrap_servers
    create_topic(bootstrap, "ready", 1)
    words = ["--bootstrap-server", bootstrap, "--output", "loud", "--group", "shouter"]
    begun, new = tmp_path / "begun", tmp_path / "new"
    (begun / "offsets").mkdir(parents=True)
    (begun / "metadata").write_text('{"id": "q"}')
    (begun / "offsets" / "0").write_text('v1\n{}\n{"ready": {"0": 0}}')
    with Client(bootstrap) as client:
        before = topics_of(client)
        items = tool.run(*words, "--input", "orders", "--checkpoint", str(new), code=1)
        planned = tool.run(*words, "--input", "ready", "--checkpoint", str(begun), code=0)
        assert topics_of(client) == before
    assert not new.exists()
    assert sorted(each.name for each in begun.iterdir()) == ["metadata", "offsets"]
    topics = {each["text"].split("'")[1]: each for each in items if each["name"] == "topic"}
    assert topics["orders"]["state"] == "refused"
    assert "--create --topic orders" in topics["orders"]["command"]
    assert topics["loud"]["state"] == "warning"
    assert planned[-1]["text"] == "batch 0 was planned and not committed: it will be done"


def test_no_embedded_broker_is_started(tool: Tool, tmp_path: Path) -> None:
    place = tmp_path / ".txnlog"
    (item,) = [e for e in tool.run("--path", str(place), code=0) if e["name"] == "brokers"]
    assert "has no data: an empty broker starts with the job" in item["text"]
    assert not place.exists()


def test_a_broker_that_is_not_there_does_not_hide_what_else_is_wrong(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    where = ["--bootstrap-server", "127.0.0.1:1", "--timeout-ms", "1000"]
    items = tool.run(*where, "--checkpoint", str(tmp_path), code=1)
    assert [each["name"] for each in items if each["state"] == "refused"] == [
        "Java",
        "checkpoint",
        "brokers",
    ]


# ------------------------------------------------------------------ what the next start will do


def test_the_next_start_is_said_in_words(query: Query, tool: Tool) -> None:
    group = ["--group", query.group, "--input", query.input, "--output", query.output]
    assert "committedOrEarliest" in tool.next_start(query, *group)
    query.log(0, 10)
    said = tool.next_start(query, *group)
    assert said == "batch 0 was planned and not committed: it will be done"
    query.commit(0, ["v00"])
    said = tool.next_start(query)
    assert said == "batch 0 is committed: Spark runs it again, and the sink skips it"
    query.note_done(0)
    said = tool.next_start(query)
    assert said == "batch 1 is planned from where batch 0 ended, which is committed"
    query.log(1, 20)
    said = tool.next_start(query)
    assert said == "batch 1 was planned and not committed: it will be done"
    folder = query.checkpoint / "txnlog"
    write_begun(folder, replace(query.begun(), batch_id=1))
    said = tool.next_start(query)
    assert said == "batch 1 was begun and not committed: it will be done"
    query.commit(1, ["v01"], run="run-2")
    assert query.values() == ["v00", "v01"]


def test_a_start_that_would_be_refused_is_refused_with_its_error(query: Query, tool: Tool) -> None:
    query.commit(0, ["v00"])
    query.note_done(0)
    with Client(query.bootstrap) as client:
        client.commit_offsets(query.group, {(query.input, 0): 3})
    assert "COMMITTED_OFFSETS_MOVED" in tool.next_start(query, state="refused")
    query.log(1, 20)
    assert "COMMITTED_OFFSETS_MOVED" in tool.next_start(query, state="refused")


def test_a_checkpoint_that_is_behind_the_output_is_warned_of(query: Query, tool: Tool) -> None:
    for number in range(2):
        query.commit(number, [f"v{number:02}"])
        query.note_done(number)
    for folder in ("offsets", "commits"):
        (query.checkpoint / folder / "1").unlink()
    said = tool.next_start(query, state="warning")
    assert said.startswith("the brokers have batch 1, the checkpoint ends with batch 0")


def test_a_new_query_begins_where_its_group_is(query: Query, tool: Tool) -> None:
    query.commit(0, ["v00"])
    query.checkpoint = query.checkpoint / "lost"
    words = ["--group", query.group, "--input", query.input, "--output", query.output]
    said = tool.next_start(query, *words)
    assert said.startswith(f"new query: begins at the group's offsets ({query.input}-0 at 10)")
