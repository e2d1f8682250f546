"""Load of a cluster beside the query: plain clients, a consumer group, and a task that reads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

from simulation.checkers.losses import Losses
from simulation.load.administrator import Administrator
from simulation.load.background_load import NEIGHBOURS_PARTITIONS, NEIGHBOURS_TOPIC
from simulation.load.cluster_clients import PARTITIONS, TOPIC, PlainClients
from simulation.load.group_load import GroupLoad, NewProcess
from simulation.load.group_members import GROUP_ID
from simulation.load.pipelined_writer import (
    PIPELINED_PARTITIONS,
    PIPELINED_TOPIC,
    PipelinedWriter,
)
from simulation.load.reader import read_partition
from simulation.load.recreated_topic import KEPT_TOPIC, RecreatedTopic
from simulation.load.routing import Routing
from simulation.load.transactions import check_ended
from simulation.load.unflushed_topic import SAFE_TOPIC, UnflushedTopic
from simulation.load.unflushed_topic import TOPIC as UNSAFE_TOPIC
from simulation.scenario import Chances, OtherLoad
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.fetch import fetch_next
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.records import Record
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, DeadlineExceeded, UnknownTopic

GROWN_PARTITIONS = NEIGHBOURS_PARTITIONS + 2
READ_MS = 700
RECORDS = 3
"""Records of a partition that a task reads: the last so many."""
FETCH_BYTES = 1 << 16
Found = dict[tuple[str, int], list[Record]]
_check_ended = partial(check_ended, "a client of the cluster")


class ClusterLoad:
    """See the module."""

    def __init__(
        self,
        load: OtherLoad,
        chances: Chances,
        rng: Callable[[str], Random],
        output: tuple[str, int],
        new_places: Callable[[], Routing],
        trace: Trace,
        *,
        faults_are_on: Callable[[], bool],
        coordinates: Callable[[int, str], bool],
        new_session: Callable[[], Session],
        now_us: Callable[[], int],
    ) -> None:
        """`output` is the topic of the query, and its partitions; `coordinates` says whether a
        broker is the coordinator of a group; `new_session` is of the product's code."""
        # The plain clients, and the members of the consumer group.
        self._reads = chances.cluster.isolation > 0.0
        self._faults_are_on = faults_are_on
        self._new_session = new_session
        self._plain = PlainClients(output, new_places, faults_are_on)
        self._group = GroupLoad(
            load.group,
            rng("group"),
            (TOPIC, PARTITIONS),
            new_places,
            trace,
            faults_are_on=faults_are_on,
            is_coordinator=lambda node: coordinates(node, GROUP_ID),
        )
        # The other clients, each in the runs whose scenario has it.
        topics = dict([output, (TOPIC, PARTITIONS)])
        grown = {NEIGHBOURS_TOPIC: GROWN_PARTITIONS} if load.neighbours else {}
        self._administrator = None
        if load.administrator:
            self._administrator = Administrator(
                rng("administrator"), topics, grown, new_places, trace, faults_are_on,
                may_repeat=chances.network.duplicate > 0.0,
            )  # fmt: skip
        self._passing = None
        if load.passing_topic:
            self._passing = RecreatedTopic(rng("passing"), new_places, trace, faults_are_on)
        self._pipelined = None
        if load.pipelined:
            self._pipelined = PipelinedWriter(new_places, faults_are_on)
        self._unsafe = None
        if load.unsafe_topic:
            self._unsafe = UnflushedTopic(rng("unsafe"), new_places, trace, faults_are_on, now_us)

    @property
    def unsafe_topics(self) -> dict[str, int]:
        """The partitions of what has `UNSAFE_CONFIGS`."""
        return {UNSAFE_TOPIC: 1} if self._unsafe is not None else {}

    @property
    def topics(self) -> dict[str, int]:
        """The partitions of what they need."""
        return self._plain.topics | self._committed_topics

    @property
    def _committed_topics(self) -> dict[str, int]:
        """Partition counts of the topics whose committed records are read in the end."""
        safe = {SAFE_TOPIC: 1} if self._unsafe is not None else {}
        kept = {KEPT_TOPIC: 1} if self._passing is not None else {}
        pipelined = {PIPELINED_TOPIC: PIPELINED_PARTITIONS} if self._pipelined is not None else {}
        return self._group.topics | kept | pipelined | self.unsafe_topics | safe

    @property
    def missing(self) -> str | None:
        """A client that has not come to an end (45); None when all have."""
        if self._unsafe is not None and not self._unsafe.is_over:
            return "the writer of the unsafe topic"
        return None if self._group.is_over else "the consumer group"

    def start(self, process: NewProcess) -> None:
        """Start each in a process of its own."""
        self._plain.start(process)
        self._group.start(process)
        if self._reads:
            ends, session, goes_on = self._plain.ends, self._new_session, self._faults_are_on
            process("task").run(read_ranges(TOPIC, ends, session, goes_on), _check_ended)
        if self._administrator is not None:
            process("administrator").run(self._administrator.work(), _check_ended)
        if self._passing is not None:
            process("passing-writer").run(self._passing.live(), _check_ended)
        if self._unsafe is not None:
            process("unsafe-writer").run(self._unsafe.live(), _check_ended)
            process("unsafe-reader").run(self._unsafe.watch(), _check_ended)
        if self._pipelined is not None:
            self._pipelined.start(process)

    def read(self, places: Routing) -> Operation[Found]:
        """Read all records of the watched topics, and the committed records of the rest."""
        found: Found = yield from self._plain.read(places)
        for topic, partitions in self._committed_topics.items():
            for number in range(partitions):
                found[topic, number], _ = yield from read_partition(
                    places, topic, number, 0, read_committed=True
                )
        return found

    def check(self, found: Found, losses: Losses) -> None:
        """Check each client's answers against the records that exist."""
        own: Collection[str] = self._committed_topics
        self._plain.check({place: each for place, each in found.items() if place[0] not in own})
        self._group.check(found)
        if self._passing is not None:
            self._passing.check(found[KEPT_TOPIC, 0])
        if self._unsafe is not None:
            self._unsafe.check(found[UNSAFE_TOPIC, 0], found[SAFE_TOPIC, 0], losses)
        if self._pipelined is not None:
            numbers = range(PIPELINED_PARTITIONS)
            self._pipelined.check([r for n in numbers for r in found[PIPELINED_TOPIC, n]])

    def check_replicas(self, replicas: Callable[[str, int], tuple[int, ...] | None]) -> None:
        """They are where the administrator wants them to be."""
        if self._administrator is not None:
            self._administrator.check(replicas)


def read_ranges(
    topic: str,
    ends: Callable[[], dict[int, int]],
    new_session: Callable[[], Session],
    may_go_on: Callable[[], bool],
) -> Operation[None]:
    """Read the last records before these high watermarks, again and again, as a task does.

    Each read is by the product's own code, as a new client, which knows nobody yet. No log of the
    cluster loses what is committed, so an offset out of range is a violation (75).
    """
    while may_go_on():
        yield Sleep(READ_MS)
        for number, end in sorted(ends().items()):
            cursor = FetchCursor(
                TopicPartition(topic, number), max(0, end - RECORDS), end, False, FETCH_BYTES
            )
            session = new_session()
            try:
                while not cursor.is_done:
                    yield from fetch_next(session, cursor)
            except DeadlineExceeded:
                # Faults kept the brokers away for too long. Nothing is lost: read the next range.
                continue
            except (DataLoss, UnknownTopic) as error:
                violated(75, "what is there was taken to be gone", error=str(error))
