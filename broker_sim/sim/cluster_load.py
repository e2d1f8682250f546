"""All that others do in a cluster beside the query: plain clients and a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from broker_sim.sim.cluster_clients import PARTITIONS, TOPIC, PlainClients
from broker_sim.sim.group_load import GroupLoad, NewProcess
from broker_sim.sim.places import Places
from broker_sim.sim.reader import read_partition
from broker_sim.sim.scenario import Scenario
from broker_sim.sim.trace import Trace
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.wire.records import Record

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
    ) -> None:
        """`output` is the topic of the query, and its partitions."""
        self._plain = PlainClients(output, new_places, faults_are_on)
        self._group = GroupLoad(
            scenario,
            rng("group"),
            (TOPIC, PARTITIONS),
            new_places,
            trace,
            faults_are_on=faults_are_on,
        )

    @property
    def topics(self) -> dict[str, int]:
        """The partitions of what they need."""
        return self._plain.topics | self._group.topics

    @property
    def missing(self) -> str | None:
        """Who has not come to an end (45); None when all have."""
        return None if self._group.is_over else "the consumer group"

    def start(self, process: NewProcess) -> None:
        """Start each in a process of its own."""
        self._plain.start(process)
        self._group.start(process)

    def read(self, places: Places) -> Operation[Found]:
        """All records of what was looked at, and what is committed of the rest."""
        found: Found = yield from self._plain.read(places)
        for topic, partitions in self._group.topics.items():
            for number in range(partitions):
                found[topic, number], _ = yield from read_partition(
                    places, topic, number, 0, read_committed=True
                )
        return found

    def check(self, found: Found) -> None:
        """What each was answered is what is there."""
        own: Sequence[str] = tuple(self._group.topics)
        self._plain.check({place: each for place, each in found.items() if place[0] not in own})
        self._group.check(found)
