"""A streaming query's checkpoint without Spark, and what Spark's driver asks of the committer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

from support.brokers.prepared import wait_until_marked
from support.clients.librdkafka import create_topic, read_topic
from support.query.checkpoint_files import read_begun
from support.query.staged_messages import in_file, on_server, stage

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.commit.plan import Begun
from txnlog_spark.offsets import SourceNote, to_json_value, with_source_note
from txnlog_spark.sink.committer import commit_streaming
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches


class Query:
    """A query's checkpoint, made by hand, and its runs: `commit` is what Spark's driver calls."""

    def __init__(self, broker, folder: Path, names: Callable[[str], str], **options: str) -> None:
        self.bootstrap = broker.bootstrap_servers
        self.input = create_topic(self.bootstrap, names("in"), 1)
        self.output = create_topic(self.bootstrap, names("out"), 2)
        self.group = names("group")
        self.checkpoint = folder
        (folder / "offsets").mkdir(parents=True)
        self.query_id = names("query")
        (folder / "metadata").write_text(json.dumps({"id": self.query_id}))
        base = {
            "kafka.bootstrap.servers": self.bootstrap,
            "checkpointLocation": str(folder),
            "kafka.group.id": self.group,
        }
        self.settings = read_sink_settings(base | options, streaming=True)
        self._attempts = itertools.count()

    def log(self, batch_id: int, end: int) -> None:
        offsets = to_json_value({TopicPartition(self.input, 0): end})
        cluster_id = client_for(self.settings.connection).session.cluster.cluster_id or ""
        source = json.dumps(with_source_note(offsets, SourceNote(cluster_id, None)))
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{source}")

    def note_done(self, batch_id: int) -> None:
        """Spark's commit log."""
        (self.checkpoint / "commits").mkdir(exist_ok=True)
        (self.checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")

    def stage(
        self, batch_id: int, values: list[str], run: str = "plan", location: Path | None = None
    ) -> StagedBatches:
        """Stage one task attempt of a planning of the batch: one record a value, in the server, or
        in a file at `location`."""
        number = next(self._attempts)
        write = self.settings.write_name(self.query_id)
        made = TaskAttempt(write, batch_id, run, f"{run}-0-{number}")
        rows = [
            (self.output, len(value) % 2, encode_batch([Record(None, value.encode())]))
            for value in values
        ]
        outlet = on_server(self.settings.staging, made)
        if location is not None:
            outlet = in_file(location, made)
        return stage(made, rows, outlet, {self.output: 2}, query_id=self.query_id)

    def commit(self, batch_id: int, values: list[str], run: str = "run-1") -> None:
        """Log, stage and commit one batch of one task; the batch ends at 10 * (batch_id + 1)."""
        self.log(batch_id, 10 * (batch_id + 1))
        self.commit_staged(batch_id, [self.stage(batch_id, values, run)], run)

    def commit_staged(
        self, batch_id: int, messages: list[StagedBatches], run: str = "run-1"
    ) -> None:
        commit_streaming(self.settings, messages, batch_id, run)

    def values(self, isolation: str = "read_committed") -> list[str]:
        seen = read_topic(self.bootstrap, self.output, isolation=isolation)
        return sorted((each.value or b"").decode() for each in seen)

    def forget_progress(self) -> None:
        """Forget progress as brokers do after offsets.retention.minutes without a batch."""
        wait_until_marked(self.bootstrap)
        client = client_for(self.settings.connection)
        client.delete_group(self.progress_group)
        client.delete_group(self.group, missing_ok=True)

    def begun(self) -> Begun:
        recorded = read_begun(self.checkpoint / "txnlog")
        assert recorded is not None
        return recorded

    def epoch(self) -> tuple[int, int]:
        """(producer id, epoch) of its transactional id, by the coordinator."""
        client = client_for(self.settings.connection)
        name = self.settings.commit_options.transactional_id_of(self.query_id)
        found = client.describe_transaction(name)
        assert found is not None
        return found.producer_id, found.producer_epoch

    @property
    def progress_group(self) -> str:
        return self.settings.commit_options.progress_group_of(self.query_id)
