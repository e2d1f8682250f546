"""Commit the batches of one query of `bench_commit`, in a process of its own, with one tree's
committer.

The tree is the first folder of PYTHONPATH. Modules that are imported here are alike in the compared
trees; `tests/support` belongs to one tree, so it is not imported. For each line of its input
({"batches": 10}) the process commits so many batches and answers with a line of figures.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

import txnlog_spark
from txnlog_kafka.operations.session import Deadline
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.offsets import SourceNote, to_json_value, with_source_note
from txnlog_spark.sink import commit_reports
from txnlog_spark.sink.commit_reports import CommitReport
from txnlog_spark.sink.committer import commit_streaming
from txnlog_spark.sink.settings import SinkSettings, read_sink_settings
from txnlog_spark.staging.address import ensure_server
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.writer import StagingWriter

STARTING_LOG = "v1\n{}\n"
TOPIC_TIMEOUT_S = 30.0
INTERNAL_PARTITIONS = 4
"""Partitions of each internal topic, as the brokers of tests have them."""
COORDINATORS = (0, 1, 2)
"""The partitions for the group, its query's progress and its transactional id: of three brokers
each leads one."""


class Query:
    """A checkpoint made by hand, and batches whose tasks staged in their messages, as small ones
    do."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._settings, self._name = _settings_of(arguments)
        self._records = arguments.records
        self._partitions = arguments.partitions
        self._input, self._output = f"{self._name}-in", f"{self._name}-out"
        self._folder = Path(arguments.folder)
        for folder in ("offsets", "commits"):
            (self._folder / folder).mkdir(parents=True)
        (self._folder / "metadata").write_text(json.dumps({"id": self._name}))
        _create(arguments.direct, {self._input: 1, self._output: self._partitions})
        ensure_server(self._settings.staging)  # who plans the tasks does it
        # An older tree has it in the messages alone, and for each batch the same.
        self._takes_run = "run_id" in inspect.signature(commit_streaming).parameters
        self._run = uuid.uuid4().hex
        name: Any = self._settings.write_name
        self._write: str = name(self._name) if callable(name) else name
        self._batch_id = 0

    def commit_next(self) -> float:
        """Commit one batch; the ms that took."""
        batch_id = self._batch_id
        self._batch_id += 1
        session = client_for(self._settings.connection).session
        offsets = to_json_value({TopicPartition(self._input, 0): 10 * (batch_id + 1)})
        note = SourceNote(session.cluster.cluster_id or "", None)
        source = json.dumps(with_source_note(offsets, note))
        (self._folder / "offsets" / str(batch_id)).write_text(STARTING_LOG + source)
        messages = [self._staged(batch_id)]
        named = {"run_id": self._run} if self._takes_run else {}
        began = time.perf_counter()
        commit_streaming(self._settings, messages, batch_id, **named)
        spent_ms = 1000 * (time.perf_counter() - began)
        (self._folder / "commits" / str(batch_id)).write_text("v1\n{}")
        return spent_ms

    def _staged(self, batch_id: int) -> StagedBatches:
        planned = uuid.uuid4().hex if self._takes_run else self._run
        attempt = TaskAttempt(self._write, batch_id, planned, f"{planned}-0-{batch_id}")
        writer = StagingWriter(_never, inline_bytes_max=1 << 20)
        for number in range(self._records):
            data = encode_batch([Record(None, f"value-{batch_id}-{number}".encode())])
            writer.append(self._output, number % self._partitions, [data])
        staged = writer.finish()
        return StagedBatches(
            attempt=attempt,
            query_id=self._name,
            task_attempt_id=batch_id,
            summary=staged.summary,
            partition_counts={self._output: self._partitions},
            inline=staged.inline,
            index=staged.index,
            path=staged.path,
            host="executor-1",
        )


def _settings_of(arguments: argparse.Namespace) -> tuple[SinkSettings, str]:
    """A query's settings, and its id: one whose coordinators are the same brokers for all."""
    while True:
        name = f"{arguments.name}-{uuid.uuid4().hex[:8]}"
        options = {
            "kafka.bootstrap.servers": arguments.servers,
            "checkpointLocation": arguments.folder,
            "kafka.group.id": uuid.uuid4().hex,
            "kafka.transactional.id": uuid.uuid4().hex,
        }
        settings = read_sink_settings(options, streaming=True)
        commit = settings.commit_options
        ids = (commit.group_id or "", commit.progress_group_of(name))
        ids = (*ids, commit.transactional_id_of(name))
        if tuple(map(_coordinator, ids)) == COORDINATORS:
            return settings, name


def _coordinator(name: str) -> int:
    """The partition of the internal topic, as Kafka finds it by Java's hash."""
    found = 0
    for character in name:
        found = (31 * found + ord(character)) & 0xFFFFFFFF
    return (found & 0x7FFFFFFF) % INTERNAL_PARTITIONS


def _never() -> Any:
    raise AssertionError("the rows are few")


def _create(servers: str, partitions: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    nodes = sorted(admin.list_topics(timeout=TOPIC_TIMEOUT_S).brokers)
    topics = [
        NewTopic(
            name,
            count,
            replica_assignment=[
                [*nodes[n % len(nodes) :], *nodes[: n % len(nodes)]] for n in range(count)
            ],
        )
        for name, count in partitions.items()
    ]
    for created in admin.create_topics(topics).values():
        created.result(TOPIC_TIMEOUT_S)


def watch() -> tuple[list[CommitReport], Counter[str]]:
    """Return the lists that note each commit's phases, and each wait before a request is sent
    again."""
    reports: list[CommitReport] = []
    waits: Counter[str] = Counter()
    wait = Deadline.wait

    def noted(self: Deadline, failures: int, doing: str, error: str, **how: bool) -> Any:
        named = re.search("[A-Z][A-Z_]{5,}", error)
        waits[f"{doing.partition(' of ')[0]}: {named[0] if named else error}"] += 1
        return (yield from wait(self, failures, doing, error, **how))

    commit_reports.send = reports.append
    Deadline.wait = noted  # type: ignore[method-assign]
    return reports, waits


def main() -> None:
    """Answer until the input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("servers", "direct", "folder", "name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--pause-ms", type=float, required=True)
    arguments = parser.parse_args()
    query = Query(arguments)
    reports, waits = watch()
    never = threading.Event()
    print(json.dumps({"tree": str(Path(txnlog_spark.__file__).parents[1])}), flush=True)
    for line in sys.stdin:
        reports.clear()
        waits.clear()
        spent = []
        for _ in range(json.loads(line)["batches"]):
            never.wait(arguments.pause_ms / 1000)
            spent.append(query.commit_next())
        phases = [report.phases_ms for report in reports]
        found = {"ms": spent, "phases_ms": phases, "waits": dict(waits)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
