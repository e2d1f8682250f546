"""The commands' options and output: what is a usage error, how tables and JSON look."""

from __future__ import annotations

import json
import re
import struct
from types import SimpleNamespace

import pytest
from support.brokers.sim_broker import SimBroker

from broker_sim.__main__ import CLI_COMMANDS
from broker_sim.__main__ import main as run_main
from broker_sim.cli import cluster
from broker_sim.cli.arguments import UsageError, parse_pairs, parse_topic_partitions
from broker_sim.cli.cluster import REMEDIES, Refused, refusal
from broker_sim.cli.group_description import assigned_partitions
from broker_sim.cli.group_offsets import parse_datetime
from broker_sim.cli.groups import _PROGRESS_GROUP
from broker_sim.cli.main import build_parser, main
from broker_sim.cli.printing import Output, Table
from txnlog_kafka.operations.admin import describe_producers
from txnlog_kafka.operations.effects import Unanswered
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition


@pytest.fixture(scope="module")
def sim_broker(tmp_path_factory):
    """A broker of ours."""
    with SimBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


SERVER = ["--bootstrap-server", "127.0.0.1:1"]
ABORT = ["transactions", "abort", *SERVER, "--topic", "t", "--partition", "0"]


def test_columns_are_aligned_and_what_is_absent_is_a_dash():
    table = Table("t", ["GROUP", "LAG"], [["a", None], ["longer", 12], ["", True]])
    assert table.lines() == ["GROUP   LAG", "a       -", "longer  12", "-       true"]
    assert Table("t", ["A", "B"], [[["x", 1], []]]).lines() == ["A    B", "x,1  -"]
    assert Table("t", ["A"], []).lines() == ["A"]


def test_json_keeps_types_and_names_columns_in_lower_case():
    one = Table("groups", ["LOG-END-OFFSET", "HOST"], [[5, None]])
    assert json.loads(Output([one]).json()) == [{"log_end_offset": 5, "host": None}]
    two = Table("topics", ["TOPIC"], [])
    assert json.loads(Output([one, two]).json()) == {
        "groups": [{"log_end_offset": 5, "host": None}],
        "topics": [],
    }


def test_what_was_refused_in_part_is_told_on_stderr_after_what_was_done(capsys):
    done = Table("topics", ["TOPIC", "DONE"], [["a", "deleted"]])
    assert Output([done], ["deleting topic 'b': NO"]).write(as_json=False) == 1
    out, err = capsys.readouterr()
    assert out == "TOPIC  DONE\na      deleted\n"
    assert err == "broker_sim: deleting topic 'b': NO\n"
    nothing = Table("topics", ["TOPIC"], [])
    assert Output([nothing], ["NO"]).write(as_json=False) == 1
    assert capsys.readouterr().out == ""
    assert Output([nothing]).write(as_json=False) == 0


def test_a_refusal_names_what_was_done_the_error_and_the_remedy():
    text = refusal("deleting group 'g'", ErrorCode.NON_EMPTY_GROUP, "busy")
    assert text == "deleting group 'g': NON_EMPTY_GROUP (busy) - stop the group's members first"
    assert refusal("x", 999) == "x: ERROR_999"
    assert all(text and not text.endswith(".") for text in REMEDIES.values())


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["orders"], [("orders", None)]),
        (["orders:0,2", "a.b_c-d"], [("orders", [0, 2]), ("a.b_c-d", None)]),
    ],
)
def test_topics_are_named_with_or_without_partitions(texts, found):
    assert parse_topic_partitions("--topic", texts) == found


@pytest.mark.parametrize("text", ["", ":0", "orders:", "orders:x", "orders:-1", "a/b", "a:0,"])
def test_what_names_no_topic_is_a_usage_error(text):
    with pytest.raises(UsageError, match="--topic takes TOPIC or"):
        parse_topic_partitions("--topic", [text])


def test_pairs_may_hold_equal_signs_and_must_have_a_name():
    assert parse_pairs("--config", ["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}
    for text in ("a", "=b", ""):
        with pytest.raises(UsageError, match="--config takes NAME=VALUE"):
            parse_pairs("--config", [text])


def test_times_are_utc_unless_they_say_another_zone():
    assert parse_datetime("1970-01-01T00:00:01") == 1000
    assert parse_datetime("1970-01-01T00:00:01Z") == 1000
    assert parse_datetime("1970-01-01T01:00:01.5+01:00") == 1500
    with pytest.raises(UsageError, match="--to-datetime"):
        parse_datetime("yesterday")
    with pytest.raises(UsageError, match="from 1970 on"):
        parse_datetime("1969-12-31T23:59:59.999")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "create", *SERVER],
        ["topics", "create", *SERVER, "--topic", "a", "--partitions", "0"],
        ["topics", "list"],
        ["topics"],
        ["topics", "paint", *SERVER],
        ["groups", "describe", *SERVER],
        ["groups", "describe", *SERVER, "--group", "g", "--all-groups"],
        ["groups", "reset-offsets", *SERVER, "--group", "g", "--topic", "t"],
        ["groups", "reset-offsets", *SERVER, "--group", "g", "--to-latest"],
        ["groups", "reset-offsets", *SERVER, "--group", "g", "--topic", "t", "--to-latest",
         "--to-earliest"],
        ["transactions", "abort", *SERVER, "--topic", "t"],
        # A producer without a transaction has no start, which is -1 in the protocol.
        [*ABORT, "--start-offset", "-1"],
        [*ABORT, "--start-offset", "soon"],
        [*ABORT, "--producer-id", str(2**63)],
        [*ABORT, "--producer-epoch", "32768"],
        [*ABORT, "--coordinator-epoch", str(2**31)],
        ["transactions", "describe-producers", *SERVER, "--topic", "t", "--partition", "-1"],
        ["transactions", "find-hanging", *SERVER, "--max-transaction-timeout", "-1"],
        ["transactions", "list", *SERVER, "--state", "Nowhere"],
        ["groups", "list", *SERVER, "--state", "Nowhere"],
        ["topics", "create", *SERVER, "--topic", "a", "--partitions", str(2**31)],
        ["topics", "create", *SERVER, "--topic", "a", "--replication-factor", "32768"],
        ["topics", "list", *SERVER, "--timeout-ms", str(2**31)],
        ["dump"],
        ["dump", "x", "--offsets-decoder", "--transaction-log-decoder"],
    ],
)  # fmt: skip
def test_wrong_options_end_with_code_2_and_name_what_is_wrong(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run_main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m broker_sim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topics", "list", "--bootstrap-server", "nowhere"], "--bootstrap-server nowhere"),
        (["topics", "alter", *SERVER, "--topic", "a"], "--partitions, --config or"),
        (["topics", "create", *SERVER, "--topic", "a", "--config", "b"], "--config takes"),
        (["transactions", "find-hanging", *SERVER, "--partition", "1"], "--partition needs"),
        (["transactions", "abort", *SERVER, "--topic", "t", "--partition", "0"], "--start-offset"),
        (
            ["transactions", "abort", *SERVER, "--topic", "t", "--partition", "0",
             "--start-offset", "1", "--producer-id", "1"],
            "excludes --producer-id",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_named_before_any_broker_is_asked(
    arguments, says, capsys
):
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_no_usage_error(capsys):
    assert main(["topics", "list", *SERVER, "--timeout-ms", "200"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_broker_that_does_not_answer_is_told_of_before_the_time_is_over(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "SILENCE_S", 0.01)
    assert main(["topics", "list", *SERVER, "--timeout-ms", "1000"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "broker_sim: no answer yet from 127.0.0.1:1, trying for 1 s in all"
    assert "Connection refused" in second


def test_a_broker_that_answers_is_not_told_of(monkeypatch, capsys, sim_broker):
    monkeypatch.setattr(cluster, "SILENCE_S", 0.0)
    with cluster.Cluster(sim_broker.bootstrap_servers, 10_000) as asked:
        asked.load_topics([])
        capsys.readouterr()
        asked._tell_of_silence()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sent", [True, False])
def test_of_a_change_that_was_sent_and_not_answered_the_error_says_that_it_may_be_done(
    monkeypatch, sim_broker, sent
):
    with cluster.Cluster(sim_broker.bootstrap_servers, 10_000) as asked:
        answer = Unanswered("broker 1 closed the connection", sent=sent)
        monkeypatch.setattr(asked.client, "run", lambda operation: answer)
        message = DESCRIBE(include_cluster_authorized_operations=False, endpoint_type=1)
        with pytest.raises(Refused) as caught:
            asked.change(message, "changing")
    said = "changing: no answer to DescribeCluster: broker 1 closed the connection"
    assert str(caught.value) == (f"{said}; {cluster.MAY_BE_DONE}" if sent else said)


@pytest.fixture
def led(sim_broker):
    """A command's access to a broker with a topic of one partition."""
    server = ["--bootstrap-server", sim_broker.bootstrap_servers]
    create = ["topics", "create", *server, "--topic", "led", "--if-not-exists"]
    assert main([*create, "--partitions", "1", "--replication-factor", "1"]) == 0
    with cluster.Cluster(sim_broker.bootstrap_servers, 10_000) as asked:
        asked.load_topics(["led"])
        yield asked


DESCRIBE = APIS[ApiKey.DESCRIBE_CLUSTER].request


def test_a_change_goes_to_the_leader_that_is_being_elected(led):
    session = led.client.session
    leader = led.leader(TopicPartition("led", 0))
    session.cluster = session.cluster.forget_leader(TopicPartition("led", 0))
    assert led.leader(TopicPartition("led", 0)) == leader >= 0


def test_a_partition_that_is_not_there_is_refused_at_once(led, monkeypatch):
    monkeypatch.setattr(led.client, "run", lambda _operation: pytest.fail("it asks"))
    for find in (led.leader, led.check_partition):
        with pytest.raises(Refused, match="topic 'led' has 1 partitions, no --partition 7"):
            find(TopicPartition("led", 7))


def test_a_refusal_of_an_operation_has_the_commands_remedy(led):
    operation = describe_producers(led.client.session, TopicPartition("led", 7))
    said = "asking: UNKNOWN_TOPIC_OR_PARTITION - `topics list` and `topics describe` show"
    with pytest.raises(Refused, match=said):
        led.run(operation, "asking")


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        run_main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"broker_sim (\d+\.\d+\.\d+|of a source tree.*)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("num.partition=1", "'num.partition'; did you mean num.partitions?"),
        ("nosuch=1", "'nosuch'; use the names of Apache Kafka's broker configurations"),
    ],
)
def test_an_unknown_configuration_is_named_with_where_to_look(tmp_path, capsys, pair, says):
    assert run_main(["start", "--data-dir", str(tmp_path), "--set", pair]) == 2
    assert capsys.readouterr().err == f"broker_sim: unknown configuration {says}\n"


def test_groups_of_progress_are_known_by_their_names():
    internal = ("g.progress.0b1c", "txnlog-write-1.progress.2", "nightly.progress")
    assert all(_PROGRESS_GROUP.search(name) for name in internal)
    assert not any(_PROGRESS_GROUP.search(name) for name in ("g", "progress", "my.progressive.g"))


def test_states_are_named_in_upper_or_lower_case():
    options = build_parser().parse_args(["groups", "list", *SERVER, "--state", "stable"])
    assert options.state == ["Stable"]
    arguments = ["transactions", "list", *SERVER, "--state", "ONGOING", "--state", "Dead"]
    assert build_parser().parse_args(arguments).state == ["Ongoing", "Dead"]


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_cannot_be_one_is_named(host, capsys):
    assert main(["topics", "list", "--bootstrap-server", f"{host}:1"]) == 2
    assert f"{host!r} is not a valid host name" in capsys.readouterr().err


def test_a_properties_file_that_is_no_text_is_named_at_the_start(tmp_path, capsys):
    path = tmp_path / "server.properties"
    path.write_bytes(b"node.id=\xff\xfe\n")
    arguments = ["start", "--data-dir", str(tmp_path / "data"), "--config", str(path)]
    assert run_main(arguments) == 2
    assert f"broker_sim: cannot read {path}: it is not UTF-8 text" in capsys.readouterr().err


def test_every_command_is_named_where_people_look_for_it():
    text = build_parser().format_help()
    (listed,) = re.findall(r"\{([a-z,]+)\}\n", text)[:1]
    assert listed.split(",") == list(CLI_COMMANDS)


def member(data: bytes):
    """A described member with this assignment."""
    return SimpleNamespace(member_assignment=data)


def test_a_members_partitions_are_read_and_other_protocols_are_none():
    topic = struct.pack(">h", 2) + b"ab" + struct.pack(">iii", 2, 1, 0)
    data = struct.pack(">hi", 1, 1) + topic + struct.pack(">i", -1)
    assert assigned_partitions(member(data)) == [("ab", 0), ("ab", 1)]
    for other in (b"", None, b"\0\1", b"connect says something", struct.pack(">hi", 1, 9)):
        assert assigned_partitions(member(other)) == []
