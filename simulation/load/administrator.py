"""An administrator at work on a cluster under faults, as Kafka's tools do it.

Replicas are moved, and moves are cancelled; preferred leaders are elected; min.insync.replicas
changes; a topic of others gets more partitions. When all is over each partition has the replicas of
the last order that was answered, if every answer was heard, and nothing is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from simulation.checkers.sync_oracle import MIN_INSYNC
from simulation.load.routing import READ_TIMEOUT_MS, Routing, ask_once
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.operations.effects import ANY_NODE, Operation, Sleep
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, CLUSTER_APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

PAUSE_MS = (200, 2_500)
CANCELLED_SHARE = 0.3
TOPIC_RESOURCE, SET = 2, 0
LATE = "request late"
REPLICAS_MIN = 2
"""Fewest replicas: min.insync.replicas asks for as many, and a disk may be lost."""

_REASSIGN = CLUSTER_APIS[ApiKey.ALTER_PARTITION_REASSIGNMENTS].request
_ELECT = CLUSTER_APIS[ApiKey.ELECT_LEADERS].request
_ALTER = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS].request
_ADD = APIS[ApiKey.CREATE_PARTITIONS].request

_REFUSED = {
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
}
"""Nothing was done, for sure."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    number: int


class Administrator:
    """See the module."""

    def __init__(
        self,
        rng: Random,
        topics: dict[str, int],
        grown: Mapping[str, int],
        new_places: Callable[[], Routing],
        trace: Trace,
        faults_are_on: Callable[[], bool],
        *,
        may_repeat: bool = False,
    ) -> None:
        """`topics` with their partitions are worked on; those of `grown` get so many.

        `may_repeat`: requests may come twice, at any time after their answer.
        """
        self._rng = rng
        self._moved = [
            Place(topic, number)
            for topic, count in (topics | _INTERNAL).items()
            for number in range(count)
        ]
        self._topics = sorted(topics)
        self._grown = sorted(grown.items())
        self._places = new_places()
        self._trace = trace
        self._faults_are_on = faults_are_on
        self._ordered: dict[Place, tuple[int, ...]] = {}
        """The replicas that a partition has to have in the end."""
        self._may_repeat = may_repeat
        self._asked: set[Place] = set()
        """There was an order, or an end to one."""
        self._not_known: set[Place] = set()
        """An order may have been carried out or not, or may still come: a broker that is asked
        forwards it to the controller, again when that is not answered, and a request that is late
        is carried out all the same (as with Kafka's NodeToControllerChannelManager)."""

    def work(self) -> Operation[None]:
        """Do task after task, while faults are on."""
        while True:
            yield Sleep(self._rng.randint(*PAUSE_MS))
            if not self._faults_are_on():
                return
            kind = self._rng.choice(("move", "move", "move", "elect", "configure", "grow"))
            if kind == "move":
                yield from self._move()
            elif kind == "elect":
                yield from self._elect()
            elif kind == "configure":
                yield from self._configure()
            elif self._grown:
                yield from self._grow()

    def check(self, replicas: Callable[[str, int], tuple[int, ...] | None]) -> None:
        """The replicas are those that were ordered (44); None for a partition that is gone."""
        for place, ordered in sorted(self._ordered.items()):
            found = replicas(*place)
            if found is not None and found != ordered:
                violated(44, "replicas are not as the last order says", partition=place,
                         found=found, ordered=ordered)  # fmt: skip

    # ------------------------------------------------------------------ orders

    def _move(self) -> Operation[None]:
        """Other replicas for a partition, or an end to that; unknown is what is not answered."""
        rng = self._rng
        place = rng.choice(self._moved)
        brokers = rng.sample(range(self._places.brokers), self._places.brokers)
        target = tuple(brokers[: rng.randint(REPLICAS_MIN, len(brokers))])
        cancels = rng.random() < CANCELLED_SHARE
        topic_type = _REASSIGN.ReassignableTopic
        asked = topic_type.ReassignablePartition(
            partition_index=place.number, replicas=None if cancels else list(target)
        )
        request = _REASSIGN(
            timeout_ms=READ_TIMEOUT_MS, allow_replication_factor_change=True,
            topics=[topic_type(name=place.topic, partitions=[asked])],
        )  # fmt: skip
        is_sure = place not in self._asked or not self._may_repeat
        self._asked.add(place)
        late_before = self._trace.counts[LATE]
        answer = yield from ask_once(ANY_NODE, request)
        error = None if answer is None else next(_codes_of_moves(answer))
        if self._trace.counts[LATE] > late_before:
            self._not_known.add(place)
        elif error in _REFUSED:
            return
        self._ordered.pop(place, None)
        if error != ErrorCode.NONE:
            self._not_known.add(place)
            return
        self._trace.count("reassignment cancelled" if cancels else "reassignment")
        if not cancels and place not in self._not_known and is_sure:
            self._ordered[place] = target

    def _elect(self) -> Operation[None]:
        place = self._rng.choice(self._moved)
        wanted = _ELECT.TopicPartitions(topic=place.topic, partitions=[place.number])
        request = _ELECT(election_type=0, topic_partitions=[wanted], timeout_ms=READ_TIMEOUT_MS)
        if (yield from ask_once(ANY_NODE, request)) is not None:
            self._trace.count("preferred leader elected on demand")

    def _configure(self) -> Operation[None]:
        """Fewer or more replicas have to be in sync."""
        topic, value = self._rng.choice(self._topics), self._rng.choice(("1", "2"))
        resource_type = _ALTER.AlterConfigsResource
        config = resource_type.AlterableConfig(name=MIN_INSYNC, config_operation=SET, value=value)
        wanted = resource_type(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[config])
        request = _ALTER(resources=[wanted], validate_only=False)
        if (yield from ask_once(ANY_NODE, request)) is not None:
            self._trace.count(f"{MIN_INSYNC} set to {value}")

    def _grow(self) -> Operation[None]:
        topic, count = self._rng.choice(self._grown)
        wanted = _ADD.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = _ADD(topics=[wanted], timeout_ms=READ_TIMEOUT_MS, validate_only=False)
        answer = yield from ask_once(ANY_NODE, request)
        if answer is not None and answer.results[0].error_code == ErrorCode.NONE:
            self._trace.count("partitions added")


_INTERNAL = {TRANSACTION_STATE_TOPIC: 2, GROUP_METADATA_TOPIC: 2}
"""Partition counts of internal topics, as `broker_options.BROKER_OPTIONS` sets them."""


def _codes_of_moves(answer: Message) -> Iterator[int]:
    yield from (answer.error_code,) if answer.error_code else ()
    for topic in answer.responses:
        yield from (part.error_code for part in topic.partitions)
