"""Records of a sink in the checkpoint: `txnlog/attempt.json`, and the folder `txnlog/outputs/`.

"What lies in the checkpoint" in docs/internals/commit-protocol.md says when each is written. The
record of an output is never removed: the driver that wrote it may be paused anywhere.
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
from txnlog_spark.commit.checkpoint import newest_batch, offsets_path
from txnlog_spark.commit.output import Output, digest_of
from txnlog_spark.commit.plan import Begun, CommitPlan, Committer, LocatedPlan, OutputTopic
from txnlog_spark.commit.progress import progress_after
from txnlog_spark.commit.refusals import left_behind
from txnlog_spark.errors import WrongCluster

FORMAT_VERSION = 1
ENDED_RUNS_MAX = 64
"""Number of ended runs that `attempt.json` remembers."""


def journal_folder(checkpoint: str, sink_name: str = "") -> str:
    """Return the folder of a sink's files in the checkpoint."""
    return f"{checkpoint}/txnlog/sinks/{sink_name}" if sink_name else f"{checkpoint}/txnlog"


def read_begun(folder: str, query_id: str = "") -> Operation[Begun | None]:
    """Return the record of the batch that was begun last, None before the first batch.

    The record of another query counts as None: its driver may still run, and its progress says
    nothing about this query. Raises ProgressError if the file is unreadable.
    """
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


def flush_plan(plan: LocatedPlan) -> Operation[None]:
    """Make the plan durable, which Spark does not: its entry, and that of the batch before."""
    last = plan.batch.batch_id
    for number in range(max(last - 1, 0), last + 1):
        yield from files.flush_file(offsets_path(plan.committer.checkpoint, number))


def begin(
    plan: LocatedPlan, *, has_state: bool = False, topics: Mapping[str, OutputTopic] | None = None
) -> Operation[None]:
    """Record the batch, durably: from then on its outcome may be unknown. Raises ProducerFenced."""
    committer, batch, after = plan.committer, plan.batch, progress_after(plan)
    recorded = yield from read_begun(committer.folder, committer.output.query_id)
    ended: tuple[str, ...] = ()
    previous = -1
    if recorded is not None:
        yield from check_not_overtaken(plan, recorded)
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
        group_digest=after.group_digest,
        positions=after.positions,
        has_state=has_state,
        topics=topics or {},
        host=committer.host,
        pid=committer.pid,
    )
    yield from write_begun(committer.folder, begun)
    # A run that has begun since the plan was made may have fenced this one: what it staged stays.
    before = "" if plan.begun is None else plan.begun.run_id
    last = "" if recorded is None else recorded.run_id
    if last != committer.run_id and last == before:
        yield RemoveOtherRuns()


def ended_with(begun: Begun) -> tuple[str, ...]:
    """Return the runs that have ended once the recorded run has ended."""
    runs = (*begun.ended_runs, begun.run_id)
    return tuple(run for run in runs if run)[-ENDED_RUNS_MAX:]


def check_not_overtaken(plan: CommitPlan, begun: Begun) -> Operation[None]:
    """Raise ProducerFenced if a newer run than the plan's has begun a later batch.

    Spark's log then has a later plan. If the log has lost that plan, this run begins before it.
    """
    is_over = plan.committer.run_id in begun.ended_runs
    if begun.batch_id > plan.batch.batch_id and not is_over:
        is_over = (yield from newest_batch(plan.committer.checkpoint)) > plan.batch.batch_id
    if is_over:
        sign = f"process {begun.pid} on host {begun.host or '(unknown)'} has begun batch "
        raise left_behind(plan, f"{sign}{begun.batch_id}")


def check_cluster(output: Output, cluster_id: str) -> None:
    """Raise WrongCluster if the query's earlier batches were written to another cluster."""
    if output.cluster_id in ("", cluster_id) or not cluster_id:
        return
    raise WrongCluster(
        f"query {output.query_id} has written to cluster {output.cluster_id} so far, and "
        f"kafka.bootstrap.servers of the writer now leads to cluster {cluster_id}. Nothing was "
        "written. Set kafka.bootstrap.servers back. To write to the new cluster from now on, start "
        "the query with a new checkpoint"
    )


# ------------------------------------------------------------------ the outputs it has had


def outputs_folder(committer: Committer) -> str:
    """Return the folder that records the outputs of this query, or of this copy of it."""
    copy = committer.output.copy
    return f"{committer.folder}/outputs-{copy}" if copy else f"{committer.folder}/outputs"


def record_path(committer: Committer) -> str:
    """Return the path of the output's record. Its name tells which records are of the own id."""
    return f"{outputs_folder(committer)}/{_id_digest(committer)}-{committer.output.digest}.json"


def _id_digest(committer: Committer) -> str:
    """Return the digest of the id: file names are limited in length and characters, ids are not."""
    return digest_of(committer.transactional_id)[:32]


def record_output(committer: Committer) -> Operation[None]:
    """Record the committer's output, durably. Raises ProgressError."""
    value = {"version": FORMAT_VERSION, "transactional_id": committer.transactional_id}
    data = json.dumps(value, indent=1).encode()
    yield from files.write_file(record_path(committer), data, durable=True)


def recorded_digests(committer: Committer) -> Operation[frozenset[str]]:
    """Return the digests of all recorded outputs. Raises ProgressError."""
    names = yield from files.list_folder(outputs_folder(committer))
    return frozenset(name.removesuffix(".json").rpartition("-")[2] for name in names)


def other_ids(committer: Committer) -> Operation[dict[str, list[str]]]:
    """Return the recorded ids but the committer's, each with its files. Raises ProgressError."""
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
