"""The queries of a run: how they are made, what readers saw, and what is there in the end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from simulation.checkers.invariants import FinalState, Observations
from simulation.hosts.checkpoint import Checkpoint, Files
from simulation.hosts.deployment import Deployment
from simulation.hosts.query_rows import Source
from simulation.hosts.scheduler import START_WALL_MS
from simulation.hosts.scripted_faults import ScriptedFaults
from simulation.load.mishaps import Mishaps
from simulation.load.operator import Host, Operator
from simulation.load.reader import read_group, read_partition, watch_output
from simulation.load.routing import RETRY_MS, Routing
from simulation.load.transactions import PRODUCE_VERSION_MAX, errors_of, produce_request
from simulation.scenario import Chances, OperatorChances, QuerySettings, Scenario
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.plan import CommitOptions

OBSERVE_MS = 400
PRODUCE_REQUEST_BYTES = 600
INPUT_TOPIC = "input"
OUTPUT_TOPIC = "output"
QUERY_GROUP_ID = "job"
SECOND = "second-"
"""Prefix of the names of the query that has the transactional id of the first by mistake."""
SECOND_BATCHES = 2
COPY = "copy-"
"""Prefix of the names of the query that runs on a copy of the first one's checkpoint."""
SHARES_THE_TOPIC = 0.3
"""Probability that a copy of a query shares the topic of the original."""


@dataclass(slots=True)
class Query:
    """A query, with the observations of its readers."""

    operator: Operator
    observations: Observations = field(default_factory=Observations)

    @property
    def topics(self) -> list[str]:
        """Topics that the query may write to."""
        return [topic for lineage in self.operator.deployment.lineages for topic in lineage]

    def write_input(self, places: Routing) -> Operation[None]:
        """Write as many records as the query has rows; call this before faults begin."""
        source = self.operator.deployment.source
        batch = encode_batch([Record(b"", b"", START_WALL_MS)] * source.rows)
        for number in range(source.settings.source_partitions):
            request = produce_request(source.topic, number, batch)
            leader = partial(places.leader, source.topic, number)
            while True:
                answer = yield from places.ask(request, PRODUCE_VERSION_MAX, leader)
                if errors_of(answer) == {ErrorCode.NONE}:
                    break
                places.forget()
                yield Sleep(RETRY_MS)

    def watchers(
        self,
        new_places: Callable[[], Routing],
        on_group: Callable[[int, str, dict[tuple[str, int], int], int], None],
    ) -> Iterator[Operation[None]]:
        """Yield a reader of each topic while it is written; the first reads the groups, too."""
        deployment, seen = self.operator.deployment, self.observations
        groups: Callable[[], tuple[str, ...]] = deployment.groups

        for topic in self.topics:

            def on_records(number: int, records: list[Record], topic: str = topic) -> None:
                seen.on_records(TopicPartition(topic, number), records)

            yield watch_output(
                new_places(),
                topic,
                deployment.source.settings.output_partitions,
                groups,
                on_records=on_records,
                on_group=on_group,
                done_batches=deployment.done_batches,
                interval_ms=OBSERVE_MS,
            )
            groups = tuple

    def read_all(self, places: Routing) -> Operation[FinalState]:
        """Read the final state as a fresh reader finds it."""
        committed: dict[TopicPartition, list[Record]] = {}
        uncommitted: dict[TopicPartition, list[Record]] = {}
        for topic in self.topics:
            for number in range(self.operator.deployment.source.settings.output_partitions):
                for read_committed, into in ((True, committed), (False, uncommitted)):
                    into[TopicPartition(topic, number)], _ = yield from read_partition(
                        places, topic, number, 0, read_committed=read_committed
                    )
        groups = {}
        for group_id in self.operator.deployment.groups():
            groups[group_id] = yield from read_group(places, group_id)
        return FinalState(committed, uncommitted, groups)


class QueryMaking:
    """Makes the queries of a run, each with an operator."""

    def __init__(
        self,
        scenario: Scenario,
        host: Host,
        planned: ScriptedFaults,
        rng: Callable[[str], random.Random],
    ) -> None:
        """`rng` gives the generator of a name; planned faults happen to the first query only."""
        self._scenario = scenario
        self._host = host
        self._planned = planned
        self._rng = rng
        self._files = Files()

    def first_queries(self) -> list[Query]:
        """Return the query, and the second one where the scenario has it."""
        settings = self._scenario.query
        options = CommitOptions(
            group_id=QUERY_GROUP_ID,
            topic=OUTPUT_TOPIC,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            produce_request_bytes=PRODUCE_REQUEST_BYTES,
        )
        first = Deployment(
            name="job",
            source=self._source("", settings.batches, settings),
            options=options,
            files=self._files,
            changes_topic=self._scenario.faults.operator.topic_change > 0.0,
            may_be_copied=self._scenario.may_be_copied,
        )
        made = [self._operated(first, "", self._scenario.faults, self._planned)]
        if self._scenario.faults.operator.second_query:
            made.append(self._second(options))
        return made

    def _second(self, options: CommitOptions) -> Query:
        """Return the query that has the transactional id of the first, until faults end."""
        source = self._source(SECOND, SECOND_BATCHES, self._settings_besides)
        options = replace(
            options,
            group_id=SECOND + QUERY_GROUP_ID,
            topic=source.output_topic,
            transactional_id=options.transactional_id_of(""),
        )
        deployment = Deployment(SECOND + "job", source, options, self._files)
        return self._besides(deployment, SECOND)

    def copy_of(self, original: Deployment, copied: Checkpoint) -> Query:
        """Return a query on a copy of the checkpoint; its topic may have been left as it was."""
        is_shared = self._rng("copy").random() < SHARES_THE_TOPIC
        topic = OUTPUT_TOPIC if is_shared else COPY + OUTPUT_TOPIC
        source = replace(original.source, output_topic=topic, settings=self._settings_besides)
        deployment = Deployment(
            name=COPY + "job",
            source=source,
            options=replace(original.options, group_id=COPY + QUERY_GROUP_ID, topic=topic),
            files=self._files,
            original=original,
            checkpoints=[copied],
        )
        return self._besides(deployment, COPY)

    def _besides(self, deployment: Deployment, prefix: str) -> Query:
        """Return a query beside the first.

        It gets a transactional id of its own later. So it keeps its checkpoint (the guarantee's
        third condition), as in `draw_random` where the id changes.
        """
        chances = self._scenario.faults
        kept = OperatorChances(id_change=chances.operator.id_change)
        return self._operated(
            deployment, prefix, replace(chances, operator=kept), ScriptedFaults(())
        )

    def _operated(
        self, deployment: Deployment, prefix: str, chances: Chances, planned: ScriptedFaults
    ) -> Query:
        mishaps = Mishaps(
            chances=chances,
            planned=planned,
            faults=self._rng(f"{prefix}driver-faults"),
            workload=self._rng(f"{prefix}workload"),
            tasks=self._rng(f"{prefix}tasks"),
            clocks=self._rng(f"{prefix}clocks"),
        )
        return Query(Operator(deployment, mishaps, self._host))

    @property
    def _settings_besides(self) -> QuerySettings:
        """Settings of a query beside the first: it has one sink."""
        return replace(self._scenario.query, sinks=1)

    def _source(self, prefix: str, batches: int, settings: QuerySettings) -> Source:
        is_alone = self._scenario.brokers.count == 1
        return Source(
            topic=prefix + INPUT_TOPIC,
            rows=batches * settings.rows_per_batch // 2 + 1,
            output_topic=prefix + OUTPUT_TOPIC,
            settings=settings,
            first_stamp_ms=0 if is_alone else START_WALL_MS,
        )
