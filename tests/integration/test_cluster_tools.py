"""`kafka-reassign-partitions` and `kafka-leader-election`, on three brokers of each kind.

Both kinds must print the same text, word for word, with the ids of brokers counted from 0. Places
of log directories and a broker's own reasons may differ. Afterwards the replicas must be in the
same places.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.probe import wait_for, wait_until
from support.brokers.three_brokers import KINDS, three_brokers
from support.clients.librdkafka import produce_values
from support.harness.availability import available
from support.kafka.java_tools import Done, JavaHost, java_command

pytestmark = pytest.mark.weekly(day=0)

# Only the tools move leaders. A killed broker counts as there until its tool has been run.
SETTINGS = {"auto.leader.rebalance.enable": "false"}
SESSION = {
    "broker_sim_cluster": {"registry.session.timeout.ms": "15000"},
    "apache_kafka_cluster": {"broker.session.timeout.ms": "15000"},
}
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
TIMEOUT_S = 600


class Tools:
    """A cluster and what administrators run against it; brokers are counted from 0 here."""

    def __init__(self, cluster: Any, java: JavaHost, folder: Path) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        self._java = java
        self._folder = folder
        self._first = min(cluster.numbers)

    def number(self, broker: int) -> int:
        """The broker's id."""
        return broker + self._first

    def counted(self, number: int) -> int:
        """The broker of this id, counted from 0."""
        return number - self._first

    def create(self, *assignments: list[int], **configs: str) -> str:
        """A topic with these replicas of its partitions, and a record in each."""
        name = f"tools-{uuid.uuid4().hex[:8]}"
        real = [[self.number(each) for each in row] for row in assignments]
        new = NewTopic(
            name,
            len(real),
            replica_assignment=real,
            config={key.replace("_", "."): value for key, value in configs.items()},
        )
        self.admin.create_topics([new])[name].result(TIMEOUT_S)
        for partition in range(len(real)):
            produce_values(self.cluster.bootstrap_servers, name, ["v"], partition=partition)
        return name

    def replicas(self, topic: str) -> list[tuple[int, list[int], set[int]]]:
        """Return (leader, replicas, ISR) of each partition; a negative leader means no leader."""
        found = self.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return [
            (
                p.leader - self._first,
                [each - self._first for each in p.replicas],
                {each - self._first for each in p.isrs},
            )
            for _, p in sorted(found.items())
        ]

    def file(self, topic: str, *assignments: list[int]) -> Path:
        """A plan of the reassignment tool for the first partitions of a topic."""
        return self.plan(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": n, "replicas": [self.number(b) for b in row]}
                    for n, row in enumerate(assignments)
                ],
            }
        )

    def plan(self, content: Any) -> Path:
        """A file with this content."""
        path = self._folder / f"{uuid.uuid4().hex}.json"
        path.write_text(json.dumps(content))
        return path

    def run(self, main_class: str, *words: object) -> Done:
        """Run a tool to its end."""
        where = ("--bootstrap-server", self.cluster.bootstrap_servers)
        return self._java.run(main_class, *where, *words)

    def reassign(self, what: str, plan: Path, *words: str) -> tuple[int, list[str]]:
        """(exit code, lines) of the tool with a plan."""
        done = self.run(REASSIGN, f"--{what}", "--reassignment-json-file", plan, *words)
        lines = [line for line in done.lines if not line.lstrip().startswith("at ")]
        return done.code, [self._counted(line) for line in lines]

    def in_progress(self) -> list[str]:
        """Return the lines of `--list`."""
        return [self._counted(line) for line in self.run(REASSIGN, "--list").lines]

    def elect(self, kind: str, *words: object) -> tuple[int, list[str]]:
        """(exit code, lines) of the tool for elections."""
        done = self.run(ELECT, "--election-type", kind, *words)
        return done.code, done.lines

    def _counted(self, line: str) -> str:
        """The line with brokers counted from 0, without log directories."""
        line = re.sub(r',"log_dirs":\[[^\]]*\]', "", line)

        def ids(found: re.Match[str]) -> str:
            return re.sub(r"\d+", lambda n: str(int(n[0]) - self._first), found[0])

        pattern = (
            r'"replicas":\[[\d,]*\]|(set is|rather than|replicas:|adding:|removing:|brokers|'
            r"entries for|broker id) \d+(,\d+)*"
        )
        return re.sub(pattern, ids, line)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaHost]:
    available(java_command)
    with JavaHost(tmp_path_factory.mktemp("java")) as host:
        yield host


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    with three_brokers(request.param, folder, SETTINGS | SESSION[request.param]) as made:
        yield made


@pytest.fixture
def tools(cluster: Any, java: JavaHost, tmp_path: Path) -> Tools:
    return Tools(cluster, java, tmp_path)


def assigned(topic: str, *assignments: list[int]) -> str:
    """The tool's line for where replicas are."""
    partitions = [
        {"topic": topic, "partition": n, "replicas": row} for n, row in enumerate(assignments)
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


def test_replicas_move_as_the_plan_says_and_back(tools: Tools) -> None:
    before, after = ([0, 1], [1, 2]), ([2, 0], [1, 2, 0])
    topic = tools.create(*before)
    started = f"Successfully started partition reassignments for {topic}-0,{topic}-1"
    for start, end in ((before, after), (after, before)):
        plan = tools.file(topic, *end)
        code, lines = tools.reassign("execute", plan)
        assert (code, lines[1], lines[-1]) == (0, assigned(topic, *start), started), lines

        def verified(plan: Path = plan) -> list[str]:
            return tools.reassign("verify", plan)[1]

        wait_for(
            verified,
            [
                "Status of partition reassignment:",
                *(f"Reassignment of partition {topic}-{n} is completed." for n in (0, 1)),
                "Clearing broker-level throttles on brokers 0,1,2",
                f"Clearing topic-level throttles on topic {topic}",
            ],
        )
        found = tools.replicas(topic)
        assert [row for _, row, _ in found] == [*end]
        assert all(set(row) == isr and leader in row for leader, row, isr in found)
    assert tools.in_progress() == ["No partition reassignments found."]
    other = tools.file(topic, [1, 0], [1, 2])
    code, lines = tools.reassign("verify", other)
    assert (code, lines[1]) == (
        0,
        f"There is no active reassignment of partition {topic}-0, but replica set is 0,1 rather "
        "than 1,0.",
    )


def test_a_plan_is_generated_that_can_be_executed(tools: Tools) -> None:
    topic = tools.create([0], [0], [0])
    wanted = tools.plan({"version": 1, "topics": [{"topic": topic}]})
    brokers = ",".join(str(tools.number(each)) for each in range(3))
    words = ("--topics-to-move-json-file", wanted, "--broker-list", brokers)
    done = tools.run(REASSIGN, "--generate", *words)
    assert done.code == 0, done
    assert json.loads(done.lines[1])["partitions"][0]["replicas"] == [tools.number(0)]
    proposed = json.loads(done.lines[3])
    places = [each["replicas"] for each in proposed["partitions"]]
    assert sorted(places) == [[tools.number(each)] for each in range(3)]
    assert tools.reassign("execute", tools.plan(proposed))[0] == 0
    expected = [[each - tools.number(0) for each in row] for row in places]
    wait_for(lambda: [row for _, row, _ in tools.replicas(topic)], expected)
    # On Apache Kafka a single replica may have no leader after its broker was killed (KIP-966), and
    # another test elects those of all partitions.
    tools.admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def test_a_throttle_is_set_and_taken_back_when_the_reassignment_is_over(tools: Tools) -> None:
    topic = tools.create([0, 1])
    plan = tools.file(topic, [1, 2])
    code, lines = tools.reassign("execute", plan, "--throttle", "50000000")
    assert (code, lines[-2:]) == (
        0,
        [
            "The inter-broker throttle limit was set to 50000000 B/s",
            f"Successfully started partition reassignment for {topic}-0",
        ],
    )
    done = f"Reassignment of partition {topic}-0 is completed."
    kept = ("--preserve-throttles",)
    wait_for(lambda: tools.reassign("verify", plan, *kept)[1][1:], [done])

    def rates() -> set[str]:
        found = set()
        for broker in range(3):
            words = ("--entity-type", "brokers", "--entity-name", tools.number(broker))
            described = tools.run("org.apache.kafka.tools.ConfigCommand", "--describe", *words).out
            found |= set(re.findall(r"^ +(\w+\.replication\.throttled\.rate=\d+)", described, re.M))
        return found

    limits = {f"{role}.replication.throttled.rate=50000000" for role in ("leader", "follower")}
    wait_for(rates, limits)
    assert tools.reassign("verify", plan)[0] == 0
    wait_for(rates, set())


def test_a_reassignment_to_a_broker_that_is_away_is_listed_and_can_be_cancelled(
    tools: Tools,
) -> None:
    # The tool asks the controller first. If that is away, it waits for the next one, and by then
    # the broker's session has ended: "Unknown broker id".
    first = tools.counted(tools.cluster.controller())
    second, away = (broker for broker in range(3) if broker != first)
    topic = tools.create([first, second])
    plan = tools.file(topic, [second, away])
    tools.cluster.kill(tools.number(away))
    code, lines = tools.reassign("execute", plan)
    assert (code, lines[-1]) == (
        0, f"Successfully started partition reassignment for {topic}-0",
    ), lines  # fmt: skip
    assert tools.in_progress() == [
        "Current partition reassignments:",
        f"{topic}-0: replicas: {second},{away},{first}. adding: {away}. removing: {first}.",
    ]
    assert tools.replicas(topic) == [(first, [second, away, first], {first, second})]
    kept = ("--preserve-throttles",)
    assert tools.reassign("verify", plan, *kept)[1][1:] == [
        f"Reassignment of partition {topic}-0 is still in progress."
    ]
    for said in (
        f"Successfully cancelled partition reassignment for: {topic}-0",
        "None of the specified partition reassignments are active.",
    ):
        code, lines = tools.reassign("cancel", plan, *kept)
        assert (code, lines) == (0, [said, "None of the specified partition moves are active."])
        wait_for(tools.in_progress, ["No partition reassignments found."])
    # Those that stay are in the plan's order.
    assert tools.replicas(topic) == [(first, [second, first], {first, second})]
    tools.cluster.restart(tools.number(away))
    wait_until(lambda: len(tools.admin.list_topics(timeout=TIMEOUT_S).brokers) == 3, "the broker")


def test_what_cannot_be_is_refused(tools: Tools) -> None:
    topic = tools.create([0, 1], [1, 2])
    refused = {
        "no such broker": ([[1, 7]], "Error: Unknown broker id 7"),
        "a broker twice": (
            [[1, 1]],
            "Error: Partition replica lists may not contain duplicate entries: "
            f"{topic}-0 contains multiple entries for 1",
        ),
        "no replica": ([[]], "Error: Partition replica list cannot be empty"),
        "no such partition": (
            [[0, 1], [1, 2], [0, 1]],
            "Error: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: "
            f"Unable to find partition: {topic}-2",
        ),
    }
    found = {}
    for case, (rows, _) in refused.items():
        code, lines = tools.reassign("execute", tools.file(topic, *rows))
        found[case] = (code, lines[0])
    assert found == {case: (1, line) for case, (_, line) in refused.items()}
    plan, keeps = tools.file(topic, [0, 1, 2]), "--disallow-replication-factor-change"
    code, lines = tools.reassign("execute", plan, keeps)
    assert (code, lines[-1].partition(":")[0]) == (1, f"{topic}-0")
    assert lines[-2] == "Error reassigning partition(s):"
    code, lines = tools.reassign("execute", tools.file("never-made", [0, 1]))
    error = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
    assert (code, lines[0]) == (1, f"Error: {error}: Topic never-made not found.")
    assert [row for _, row, _ in tools.replicas(topic)] == [[0, 1], [1, 2]]


def test_the_preferred_replica_is_elected_when_an_administrator_says_so(tools: Tools) -> None:
    topic = tools.create([0, 1], [1, 0])
    plan = tools.file(topic, [2, 0, 1], [1, 0])
    assert tools.reassign("execute", plan)[0] == 0
    wait_for(lambda: tools.replicas(topic)[0], (0, [2, 0, 1], {0, 1, 2}))
    place = ("--topic", topic, "--partition", 0)
    done = f"Successfully completed leader election (PREFERRED) for partitions {topic}-0"
    assert tools.elect("preferred", *place) == (0, [done])
    wait_for(lambda: [leader for leader, _, _ in tools.replicas(topic)], [2, 1])
    done = f"Valid replica already elected for partitions {topic}-0"
    assert tools.elect("preferred", *place) == (0, [done])
    for absent in ((topic, 9), ("never-made", 0)):
        code, lines = tools.elect("preferred", "--topic", absent[0], "--partition", absent[1])
        error = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
        said = "Error completing leader election (PREFERRED) for partition: {}-{}: {}"
        assert (code, lines[0].startswith(said.format(*absent, error))) == (1, True), lines

    # Also of the other topics, where a broker that came back may not be in sync yet.
    def refused() -> list[str]:
        code, lines = tools.elect("preferred", "--all-topic-partitions")
        return lines if code else []

    wait_for(refused, [])


def test_an_unclean_leader_is_elected_on_demand_only(tools: Tools) -> None:
    topic = tools.create([0, 1], min_insync_replicas="1")
    place = ("--topic", topic, "--partition", 0)
    tools.cluster.stop_one(tools.number(1))
    wait_for(lambda: tools.replicas(topic)[0][2], {0})
    produce_values(tools.cluster.bootstrap_servers, topic, ["only there"])
    tools.cluster.stop_one(tools.number(0))
    tools.cluster.launch(tools.number(1))

    def is_back_and_does_not_lead() -> bool:
        brokers = set(tools.admin.list_topics(timeout=TIMEOUT_S).brokers)
        return brokers == {tools.number(1), tools.number(2)} and tools.replicas(topic)[0][0] < 0

    wait_until(is_back_and_does_not_lead, "the broker that is not in sync")
    code, lines = tools.elect("preferred", *place)
    error = "org.apache.kafka.common.errors.PreferredLeaderNotAvailableException"
    said = f"Error completing leader election (PREFERRED) for partition: {topic}-0: {error}"
    assert (code, lines[0].startswith(said)) == (1, True), lines
    done = f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0"
    assert tools.elect("unclean", *place) == (0, [done])
    wait_for(lambda: tools.replicas(topic), [(1, [0, 1], {1})])
    done = f"Valid replica already elected for partitions {topic}-0"
    assert tools.elect("unclean", *place) == (0, [done])
    tools.cluster.restart(tools.number(0))
    wait_for(lambda: tools.replicas(topic), [(1, [0, 1], {0, 1})])
