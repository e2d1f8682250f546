"""Queries of one scripted cluster, batch by batch from their checkpoints on."""

from __future__ import annotations

import json

from support.core.core_broker import CoreBroker
from support.query.commit_plans import record_batch, staged

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.plan import CommitOptions, CommitOutcome
from txnlog_spark.commit.query import QueryBatch, commit_query_batch
from txnlog_spark.offsets import (
    GROUP_NOTE,
    START_NOTE,
    SourceNote,
    positions_digest,
    to_json_value,
    with_source_note,
)

OUT = ("out", 0)


class QueryJob:
    """The queries of one cluster; rows of batch n are called n, with the checkpoint before it."""

    def __init__(self) -> None:
        self.cluster = CoreBroker(2)
        self.added: dict[str, int] = {}
        """Ends of further partitions of its source."""
        self.notes: dict[str, dict[str, int]] = {}
        """Further notes in each offset of a checkpoint."""
        self.ends: dict[int, int] = {}
        """End offsets of batches that do not end one record behind the batch before."""
        self.planned_again = ""
        """Metadata of batches that are planned from now on."""
        self.source_cluster = "c"
        self.notices: list[str] = []

    def commit(
        self,
        place: str,
        batch_id: int,
        run_id: str = "run-1",
        *,
        is_function: bool = False,
        **options: object,
    ) -> CommitOutcome:
        """Commit a batch as Spark's driver asks for it, with the checkpoint at this place."""
        self.log(place, batch_id)
        batch = QueryBatch(
            checkpoint=place,
            location=place,
            batch_id=batch_id,
            options=CommitOptions(**{"topic": "out", **options}),  # type: ignore[arg-type]
            staged=staged("out", 0, record_batch(f"{place}.{batch_id}")),
            run_id=run_id,
            query_id="q",
            is_function=is_function,
            host="h",
            pid=7,
        )
        cluster, session = self.cluster, self.cluster.session()
        session.notice = self.notices.append
        outcome: CommitOutcome = cluster.run(commit_query_batch(session, batch))
        return outcome

    def log(self, place: str, batch_id: int) -> None:
        """Plan the batch, as Spark does."""
        end = self.ends.get(batch_id, batch_id + 1)
        note = f"txnlog/cluster.id/{self.source_cluster}"
        source = json.dumps({"in": {"0": end, **self.added}, note: {}, **self.notes})
        self.cluster.files[f"{place}/metadata"] = b'{"id":"q"}'
        self.cluster.files[f"{place}/offsets/{batch_id}"] = (
            f"v1\n{json.dumps({'batch': self.planned_again})}\n{source}".encode()
        )

    def start_committed(self, place: str, at: int) -> None:
        """Batch 0 of a query with startingOffsets=committed: it is empty, and notes the start,
        which is noted in each offset behind it."""
        offsets = {TopicPartition("in", 0): at}
        self.notes = {GROUP_NOTE + "g": {}, START_NOTE + positions_digest(offsets): {}}
        note = SourceNote("c", "g", group_start=positions_digest(offsets))
        source = json.dumps(with_source_note(to_json_value(offsets), note))
        self.cluster.files[f"{place}/metadata"] = b'{"id":"q"}'
        self.cluster.files[f"{place}/offsets/0"] = f"v1\n{{}}\n{source}".encode()

    def lose_tail(self, place: str, batch_id: int) -> None:
        """Spark's log has no plan of this batch and of those behind it any more."""
        for number in range(batch_id, batch_id + 10):
            self.cluster.files.pop(f"{place}/offsets/{number}", None)

    def copy(self, place: str, to: str) -> None:
        """Copy all files of a checkpoint."""
        files = self.cluster.files
        files |= {to + p.removeprefix(place): b for p, b in files.items() if p.startswith(place)}

    def delete(self, folder: str) -> None:
        """A folder with all that is in it."""
        files = self.cluster.files
        for path in [path for path in files if path.startswith(f"{folder}/")]:
            del files[path]

    @property
    def rows(self) -> list[str]:
        """Return the committed values of the output."""
        return [value.decode() for value in self.cluster.committed_values(*OUT)]
