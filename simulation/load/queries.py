"""The queries of a run: their operators, what readers saw, and what is there in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from simulation.checkers.invariants import FinalState, Observations
from simulation.hosts.scheduler import START_WALL_MS
from simulation.load.cluster_clients import PRODUCE_VERSION_MAX, produce_request
from simulation.load.operator import Operator
from simulation.load.reader import read_group, read_partition, watch_output
from simulation.load.routing import RETRY_MS, Routing
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.topic_partition import TopicPartition

OBSERVE_MS = 400


def _no_groups() -> tuple[str, ...]:
    return ()


@dataclass(slots=True)
class Query:
    """A query, with the observations of its readers."""

    operator: Operator
    observations: Observations = field(default_factory=Observations)

    @property
    def topics(self) -> list[str]:
        """Topics that the query may write to."""
        return [topic for lineage in self.operator.lineages for topic in lineage]

    def write_input(self, places: Routing) -> Operation[None]:
        """Write as many records as the query has rows; call this before faults begin."""
        source = self.operator.source
        batch = encode_batch([Record(b"", b"", START_WALL_MS)] * source.rows)
        for number in range(source.settings.source_partitions):
            request = produce_request(source.topic, number, batch)
            leader = partial(places.leader, source.topic, number)
            while True:
                answer = yield from places.ask(request, PRODUCE_VERSION_MAX, leader)
                if answer.responses[0].partition_responses[0].error_code == 0:
                    break
                places.forget()
                yield Sleep(RETRY_MS)

    def watchers(
        self,
        new_places: Callable[[], Routing],
        on_group: Callable[[int, str, dict[tuple[str, int], int], int], None],
    ) -> Iterator[Operation[None]]:
        """The readers of each topic while it is written, the first one the groups as well."""
        operator, seen = self.operator, self.observations
        groups = operator.groups

        for topic in self.topics:

            def on_records(number: int, records: list[Record], topic: str = topic) -> None:
                seen.on_records(TopicPartition(topic, number), records)

            yield watch_output(
                new_places(),
                topic,
                operator.source.settings.output_partitions,
                groups,
                on_records=on_records,
                on_group=on_group,
                done_batches=operator.done_batches,
                interval_ms=OBSERVE_MS,
            )
            groups = _no_groups

    def read_all(self, places: Routing) -> Operation[FinalState]:
        """Read the final state as a fresh reader finds it."""
        committed: dict[TopicPartition, list[Record]] = {}
        uncommitted: dict[TopicPartition, list[Record]] = {}
        for topic in self.topics:
            for number in range(self.operator.source.settings.output_partitions):
                for read_committed, into in ((True, committed), (False, uncommitted)):
                    into[TopicPartition(topic, number)], _ = yield from read_partition(
                        places, topic, number, 0, read_committed=read_committed
                    )
        groups = {}
        for group_id in self.operator.groups():
            groups[group_id] = yield from read_group(places, group_id)
        return FinalState(committed, uncommitted, groups)
