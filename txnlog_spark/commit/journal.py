"""What a sink keeps in the checkpoint: `txnlog/attempt.json`, and the folder `txnlog/outputs/`.

The record names the last batch whose transaction may have begun, and is flushed *before* that
begins, with the batch's plan, which Spark does not flush. Its existence says that progress must
exist, unless a batch comes that was never begun. The folder has a file for each output that the
query has had, which is never replaced and never removed: a driver that wrote it may be paused
anywhere ("Another transactional id" in docs/internals/commit-protocol.md).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from txnlog_kafka.operations.effects import Operation, RemoveOtherRuns
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import checkpoint_files as files
from txnlog_spark.commit.checkpoint import newest_plan, offsets_path
from txnlog_spark.commit.output import Output, digest_of
from txnlog_spark.commit.plan import Begun, Committer, LocatedPlan, OutputTopic
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.commit.refusals import left_behind
from txnlog_spark.errors import WrongCluster
from txnlog_spark.offsets import positions_digest

FORMAT_VERSION = 1
ENDED_RUNS_MAX = 64
"""How many runs back one is known to be over."""


def journal_folder(checkpoint: str, sink_name: str = "") -> str:
    """Where a sink keeps its files in the checkpoint."""
    return f"{checkpoint}/txnlog/sinks/{sink_name}" if sink_name else f"{checkpoint}/txnlog"


def read_begun(folder: str, query_id: str = "") -> Operation[Begun | None]:
    """What was begun last, None before the first batch, and for a record of another query: its
    driver may live, its progress says nothing here. Raises ProgressError if unreadable."""
    path = f"{folder}/attempt.json"
    data = yield from files.read_file(path)
    begun = None if data is None else _begun_of(path, data)
    is_other = begun is not None and query_id not in ("", begun.output.query_id)
    return None if is_other else begun


def _begun_of(path: str, data: bytes) -> Begun:
    value: Any = files.json_of(path, files.text_of(path, data))
    try:
        if value.pop("version") != FORMAT_VERSION:
            raise files.unreadable(path, "it is of a newer version of txnlog_spark")
        topic, number = value.pop("progress_partition")
        ended_runs = tuple(map(str, value.pop("ended_runs")))
        topics = {name: OutputTopic(*each) for name, each in value.pop("topics", {}).items()}
        output = Output(**value.pop("output"))
        place = TopicPartition(str(topic), int(number))
        return Begun(
            output=output, progress_partition=place, ended_runs=ended_runs, topics=topics, **value
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise files.unreadable(path, f"unexpected content: {error}") from error


def write_begun(folder: str, begun: Begun) -> Operation[None]:
    """Replace the record, durably. Raises ProgressError."""
    data = json.dumps({"version": FORMAT_VERSION, **asdict(begun)}, indent=1).encode()
    yield from files.write_file(f"{folder}/attempt.json", data, durable=True)


def begin(
    plan: LocatedPlan, *, has_state: bool = False, topics: Mapping[str, OutputTopic] | None = None
) -> Operation[None]:
    """Record the batch and its plan, durably, before its transaction begins: from then on its
    outcome may be unknown.

    Raises ProducerFenced when another run went on meanwhile.
    """
    committer, batch = plan.committer, plan.batch
    recorded = yield from read_begun(committer.folder, committer.output.query_id)
    ended: tuple[str, ...] = ()
    previous = -1
    if recorded is not None:
        yield from check_not_overtaken(committer, recorded, batch.batch_id)
        is_again = recorded.batch_id == batch.batch_id
        previous = recorded.previous_batch_id if is_again else recorded.batch_id
        is_ours = recorded.run_id == committer.run_id
        ended = recorded.ended_runs if is_ours else ended_with(recorded)
    begun = Begun(
        output=committer.output,
        batch_id=batch.batch_id,
        run_id=committer.run_id,
        progress_group_id=committer.progress_group_id,
        progress_partition=plan.place,
        previous_batch_id=previous,
        ended_runs=ended,
        group_digest=group_digest(plan.group_id),
        positions="" if plan.group_id is None else positions_digest(batch.source_offsets),
        has_state=has_state,
        topics=topics or {},
        host=committer.host,
        pid=committer.pid,
    )
    for number in range(max(batch.batch_id - 1, 0), batch.batch_id + 1):
        yield from files.flush_file(offsets_path(committer.checkpoint, number))
    yield from write_begun(committer.folder, begun)
    # A run that has begun since the plan was made may have fenced this one: what it staged stays.
    before = "" if plan.begun is None else plan.begun.run_id
    last = "" if recorded is None else recorded.run_id
    if last != committer.run_id and last == before:
        yield RemoveOtherRuns()


def ended_with(begun: Begun) -> tuple[str, ...]:
    """The runs that are over when the recorded one is."""
    runs = (*begun.ended_runs, begun.run_id)
    return tuple(run for run in runs if run)[-ENDED_RUNS_MAX:]


def check_not_overtaken(committer: Committer, begun: Begun, batch_id: int) -> Operation[None]:
    """Raise ProducerFenced when a newer run than this one has begun a batch.

    Then Spark's log has a later plan. Without one it has lost its newest entries, and this run
    begins again before them.
    """
    is_over = committer.run_id in begun.ended_runs
    if begun.batch_id > batch_id and not is_over:
        is_over = (yield from newest_plan(committer.checkpoint)) > batch_id
    if is_over:
        sign = f"process {begun.pid} on host {begun.host or '(unknown)'} has begun batch "
        raise left_behind(committer, batch_id, f"{sign}{begun.batch_id}")


def check_cluster(output: Output, cluster_id: str) -> None:
    """Raises WrongCluster when the query's batches were written to another cluster before."""
    if output.cluster_id in ("", cluster_id) or not cluster_id:
        return
    raise WrongCluster(
        f"query {output.query_id} has written to cluster {output.cluster_id} so far, and "
        f"kafka.bootstrap.servers of the writer now leads to cluster {cluster_id}. Nothing was "
        "written. Set it back; or, to write to the new cluster from here on, start the query with "
        "a new checkpoint"
    )


# ------------------------------------------------------------------ the outputs it has had


def outputs_folder(committer: Committer) -> str:
    """Where the outputs of this query, or of this copy of it, are recorded."""
    copy = committer.output.copy
    return f"{committer.folder}/outputs-{copy}" if copy else f"{committer.folder}/outputs"


def record_path(committer: Committer) -> str:
    """Where the output is recorded: its name tells the own id's records without reading them."""
    return f"{outputs_folder(committer)}/{_id_digest(committer)}-{committer.output.digest}.json"


def _id_digest(committer: Committer) -> str:
    """Ids may have any length and characters, names of files not."""
    return digest_of(committer.transactional_id)[:32]


def record_output(committer: Committer) -> Operation[None]:
    """Record the committer's output, durably. Raises ProgressError."""
    value = {"version": FORMAT_VERSION, "transactional_id": committer.transactional_id}
    data = json.dumps(value, indent=1).encode()
    yield from files.write_file(record_path(committer), data, durable=True)


def recorded_digests(committer: Committer) -> Operation[frozenset[str]]:
    """Those of all recorded outputs. Raises ProgressError."""
    names = yield from files.list_folder(outputs_folder(committer))
    return frozenset(name.removesuffix(".json").rpartition("-")[2] for name in names)


def other_ids(committer: Committer) -> Operation[dict[str, list[str]]]:
    """All recorded ids but the committer's, each with its files. Raises ProgressError."""
    folder, own = outputs_folder(committer), f"{_id_digest(committer)}-"
    found: dict[str, list[str]] = defaultdict(list)
    for name in (yield from files.list_folder(folder)):
        path = f"{folder}/{name}"
        if not name.startswith(own):
            found[_id_of(path, (yield from files.read_text(path)))].append(path)
    return found


def _id_of(path: str, text: str) -> str:
    value = files.json_of(path, text)
    if not isinstance(value, dict) or value.get("version") != FORMAT_VERSION:
        raise files.unreadable(path, "it is not an output as this version records it")
    name = value.get("transactional_id")
    if not isinstance(name, str) or not name:
        raise files.unreadable(path, "it has no transactional_id")
    return name
