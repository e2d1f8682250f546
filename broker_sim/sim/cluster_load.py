"""All that others do in a cluster beside the query: plain clients and a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from broker_sim.sim.administrator import Administrator
from broker_sim.sim.cluster_clients import PARTITIONS, TOPIC, PlainClients
from broker_sim.sim.group_load import GroupLoad, NewProcess
from broker_sim.sim.group_members import GROUP_ID
from broker_sim.sim.neighbour import NEIGHBOURS_PARTITIONS, NEIGHBOURS_TOPIC
from broker_sim.sim.passing_topic import KEPT_TOPIC, PassingTopic
from broker_sim.sim.places import Places
from broker_sim.sim.range_reader import read_ranges
from broker_sim.sim.reader import read_partition
from broker_sim.sim.scenario import Scenario
from broker_sim.sim.trace import Trace
from broker_sim.sim.violation import violated
from txnlog_spark.errors import TxnLogError
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.session import Session
from txnlog_spark.wire.records import Record

GROWN_PARTITIONS = NEIGHBOURS_PARTITIONS + 2
Found = dict[tuple[str, int], list[Record]]


class ClusterLoad:
    """See the module."""

    def __init__(
        self,
        scenario: Scenario,
        rng: Callable[[str], Random],
        output: tuple[str, int],
        new_places: Callable[[], Places],
        trace: Trace,
        *,
        faults_are_on: Callable[[], bool],
        coordinates: Callable[[int, str], bool],
        new_session: Callable[[], Session],
    ) -> None:
        """`output` is the topic of the query, and its partitions; `coordinates` says whether a
        broker is the coordinator of a group; `new_session` is of the product's code."""
        self._reads = scenario.isolation > 0.0
        self._faults_are_on = faults_are_on
        self._new_session = new_session
        self._plain = PlainClients(output, new_places, faults_are_on)
        self._group = GroupLoad(
            scenario,
            rng("group"),
            (TOPIC, PARTITIONS),
            new_places,
            trace,
            faults_are_on=faults_are_on,
            is_coordinator=lambda node: coordinates(node, GROUP_ID),
        )
        topics = dict([output, (TOPIC, PARTITIONS)])
        grown = {NEIGHBOURS_TOPIC: GROWN_PARTITIONS} if scenario.neighbours else {}
        self._administrator = None
        if scenario.administrator:
            self._administrator = Administrator(
                rng("administrator"), topics, grown, new_places, trace, faults_are_on
            )
        self._passing = None
        if scenario.passing_topic:
            self._passing = PassingTopic(rng("passing"), new_places, trace, faults_are_on)

    @property
    def topics(self) -> dict[str, int]:
        """The partitions of what they need."""
        return self._plain.topics | self._committed_topics

    @property
    def _committed_topics(self) -> dict[str, int]:
        """Those of which what is committed is read in the end."""
        return self._group.topics | ({KEPT_TOPIC: 1} if self._passing is not None else {})

    @property
    def missing(self) -> str | None:
        """Who has not come to an end (45); None when all have."""
        return None if self._group.is_over else "the consumer group"

    def start(self, process: NewProcess) -> None:
        """Start each in a process of its own."""
        self._plain.start(process)
        self._group.start(process)
        if self._reads:
            ends, session, goes_on = self._plain.ends, self._new_session, self._faults_are_on
            process("task").run(read_ranges(TOPIC, ends, session, goes_on), _on_end)
        if self._administrator is not None:
            process("administrator").run(self._administrator.work(), _on_end)
        if self._passing is not None:
            process("passing-writer").run(self._passing.live(), _on_end)

    def read(self, places: Places) -> Operation[Found]:
        """All records of what was looked at, and what is committed of the rest."""
        found: Found = yield from self._plain.read(places)
        for topic, partitions in self._committed_topics.items():
            for number in range(partitions):
                found[topic, number], _ = yield from read_partition(
                    places, topic, number, 0, read_committed=True
                )
        return found

    def check(self, found: Found) -> None:
        """What each was answered is what is there."""
        own: Collection[str] = self._committed_topics
        self._plain.check({place: each for place, each in found.items() if place[0] not in own})
        self._group.check(found)
        if self._passing is not None:
            self._passing.check(found[KEPT_TOPIC, 0])

    def check_replicas(self, replicas: Callable[[str, int], tuple[int, ...] | None]) -> None:
        """They are where the administrator wants them to be."""
        if self._administrator is not None:
            self._administrator.check(replicas)


def _on_end(_: object, error: TxnLogError | None) -> None:
    if error is not None:
        violated(46, "a client of the cluster failed", error=str(error))
