"""The driver's part of a write: one Kafka transaction per micro-batch (DESIGN section 3).

Spark builds a new writer in a reused worker process for every commit, so what must live on is kept
in this module, by (cluster, transactional id): the producer identity of the query run that used it
last. A worker may vanish at any time; then the identity file in the checkpoint says with which
producer id and epoch this run goes on, and InitProducerId with those is refused (PRODUCER_FENCED)
if another driver took over meanwhile. A new run of the query begins with a plain InitProducerId,
which fences whatever an older driver still does; if the query had another transactional id before,
that one's holder is fenced first, by the id that the identity file names.

Before its first transaction a query commits a baseline of its progress, in a transaction of its
own so that a driver which was stopped and overtaken cannot set progress back; only then the
identity file is written. From then on progress must exist, where that file says and as far as it
says: Kafka deletes a topic's committed offsets with the topic, so all batches of a query commit
their progress for one partition, chosen before the baseline.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from txnlog_spark.client import admin
from txnlog_spark.client.driver import Client
from txnlog_spark.connection import client_for, resolve_bootstrap
from txnlog_spark.errors import (
    CommitStateUnknown,
    OptionError,
    ProducerFenced,
    TxnLogError,
    check,
)
from txnlog_spark.failpoints import reached
from txnlog_spark.offsets import TopicPartition, by_plain_names
from txnlog_spark.protocol.commit import spent
from txnlog_spark.protocol.values import (
    CommitOutcome,
    CommitPlan,
    Partition,
    ProducerIdentity,
    Progress,
)
from txnlog_spark.sink import checkpoint as checkpoints
from txnlog_spark.sink.checkpoint import BatchOffsets, RecordedIdentity
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.sink.staging import (
    StagedBatches,
    abandon_message,
    default_root,
    plan_staged,
    remove_all,
    remove_batches,
)
from txnlog_spark.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """The identity that this process used last for a transactional id, and for which query run."""

    query_id: str
    run_id: str
    identity: ProducerIdentity


_held: dict[tuple[int, str, str], _Held] = {}


def commit_streaming(
    settings: SinkSettings, messages: Sequence[StagedBatches | None], batch_id: int
) -> None:
    """Commit one micro-batch of a streaming query, exactly once.

    Raises ProducerFenced, CommitStateUnknown, ProgressError and what the brokers refuse; each time
    Spark stops the query, and its restart replays the batch.
    """
    reached("S6", "before", batch_id)
    check(settings.checkpoint is not None, "a streaming sink has a checkpoint")
    checkpoint = settings.checkpoint or Path()
    staged = _complete(messages)
    query_id = checkpoints.read_query_id(checkpoint)
    sources = checkpoints.read_batch_offsets(checkpoint, batch_id)
    run_id = _run_id(staged, query_id, batch_id)
    reached("S6", "after", batch_id)
    bootstrap_servers = resolve_bootstrap(settings.connection)
    client = client_for(settings.connection, bootstrap_servers)
    recorded = checkpoints.read_identity(checkpoint)
    plan = plan_commit(settings, staged, query_id, run_id, batch_id, sources)
    plan = _place_progress(client, settings, plan, recorded)
    key = (os.getpid(), bootstrap_servers, plan.transactional_id)
    identity = _identity_of_run(_held.pop(key, None), recorded, plan)
    if plan.group_id is not None and not _follows(identity, plan):
        previous = checkpoints.read_previous_offsets(checkpoint, batch_id)
        plan = replace(plan, previous_offsets=by_plain_names(previous))
    if recorded is None:
        identity, progress = _commit_baseline(client, identity, plan)
        checkpoints.write_identity(checkpoint, _record(plan, identity, progress.next_batch_id))
    elif identity is None and recorded.transactional_id != plan.transactional_id:
        _leave_transactional_id(client, checkpoint, recorded, plan)
    plan = replace(plan, confirm_holder=partial(_confirm_holder, checkpoint, plan))
    outcome = admin.commit_micro_batch(client, identity, plan)
    _held[key] = _Held(query_id, run_id, outcome.identity)
    next_batch_id = outcome.progress.next_batch_id
    checkpoints.write_identity(checkpoint, _record(plan, outcome.identity, next_batch_id))
    _warn_of_missing(plan, outcome)
    remove_batches(default_root(checkpoint, settings.staging_location), query_id, batch_id)
    reached("S14", "before", batch_id)


def abort_staged(messages: Iterable[StagedBatches | None]) -> None:
    """Forget a batch whose tasks failed. Nothing was produced, so nothing is aborted here.

    Spark also calls this after a failed commit; a transaction whose EndTxn was sent must not be
    touched then, and one that was not ended is fenced by the next InitProducerId.
    """
    for message in messages:
        abandon_message(message)


def commit_batch_write(
    settings: SinkSettings, messages: Sequence[StagedBatches | None], write_id: str
) -> CommitOutcome | None:
    """Commit a batch write as one transaction: all of it or nothing. None when there are no rows.

    Spark gives a batch job no identity that survives a retry, so running the job again writes the
    rows again. The transactional id is the write's own unless the option names one.
    Raises what `commit_streaming` does; CommitStateUnknown only when asking again did not help.
    """
    staged = _complete(messages)
    if not any(message.chunks for message in staged):
        return None
    client = client_for(settings.connection)
    plan = plan_commit(settings, staged, write_id, write_id, 0, BatchOffsets({}, ""))
    plan = replace(plan, group_id=None, must_exist=False)
    plan = replace(plan, progress_partition=_progress_partition(client, settings, plan))
    outcome = _commit_write(client, plan)
    remove_all(default_root(None, settings.staging_location), write_id)
    try:
        admin.delete_group(client, plan.progress_group_id, missing_ok=True)
    except (TxnLogError, OSError) as error:
        # An error here would say that the write failed, and running it again would double it.
        logger.warning(
            "the write is committed; only its group %s could not be deleted, and expires by "
            "itself (offsets.retention.minutes): %s",
            plan.progress_group_id,
            error,
        )
    return outcome


def _commit_write(client: Client, plan: CommitPlan) -> CommitOutcome:
    """Commit a batch write, and find out at once what became of a commit without an answer.

    A later job could not: the progress that tells lies under the write's own name, which ends here.
    """
    try:
        return admin.commit_micro_batch(client, None, plan)
    except CommitStateUnknown as error:
        unknown = error
    logger.warning("asking whether the write is committed: %s", unknown)
    try:
        return admin.commit_micro_batch(client, None, plan)
    except TxnLogError as error:
        raise CommitStateUnknown(
            f"whether the rows of this batch write are in the output is unknown: EndTxn(commit) of "
            f"transactional id {plan.transactional_id!r} had no answer, and asking again failed "
            f"({error}). When no transaction of that id is open any more (at the latest after its "
            f"timeout of {plan.transaction_timeout_ms} ms), look at group "
            f"{plan.progress_group_id!r}: with a committed offset the rows are in the output; "
            "without one they are not, and the write is to be run again",
            transactional_id=plan.transactional_id,
            batch_id=plan.batch_id,
        ) from error


def plan_commit(
    settings: SinkSettings,
    staged: Sequence[StagedBatches],
    query_id: str,
    run_id: str,
    batch_id: int,
    sources: BatchOffsets,
) -> CommitPlan:
    """The commit of one batch as a value. Pure, but for the staged bytes that it will read.

    The progress partition is left open (partition -1 of no topic). Raises TxnLogError when tasks
    saw different partition counts of one topic, OptionError for a start from another group.
    """
    merge_counts(message.partition_counts for message in staged)
    _check_groups(settings, sources)
    group_id = settings.group_id if sources.source_offsets else None
    return CommitPlan(
        query_id=query_id,
        run_id=run_id,
        batch_id=batch_id,
        transactional_id=settings.transactional_id_of(query_id),
        progress_group_id=settings.progress_group_of(query_id),
        progress_partition=("", -1),
        staged=tuple(plan_staged(staged)),
        group_id=group_id,
        source_offsets=by_plain_names(sources.source_offsets) if group_id else {},
        source_digest=sources.digest,
        must_exist=True,
        group_covers_sources=sources.is_whole,
        expected=sources.expected,
        transaction_timeout_ms=settings.transaction_timeout_ms,
    )


def _check_groups(settings: SinkSettings, sources: BatchOffsets) -> None:
    """A start from a group's committed offsets is safe only where the sink moves that group."""
    for expected in sources.expected:
        if expected.group_id != settings.group_id:
            raise OptionError(
                "kafka.group.id",
                settings.group_id,
                f"set it to {expected.group_id!r} for the writer as well: the query starts from "
                "that group's committed offsets (startingOffsets=committed), and the sink has to "
                "commit them",
            )


def merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The partition counts that all tasks agree on. Raises TxnLogError when they do not.

    Rows of one key would be in two partitions; the replayed batch sees the new count in all tasks.
    """
    merged: dict[str, int] = {}
    for part in counts:
        for topic, count in part.items():
            if merged.setdefault(topic, count) != count:
                raise TxnLogError(
                    f"partitions were added to topic {topic} while the batch ran ({merged[topic]} "
                    f"and {count} were seen): nothing was committed, restart the query"
                )
    return merged


def _complete(messages: Sequence[StagedBatches | None]) -> list[StagedBatches]:
    """All tasks' messages. A missing one means rows that would be lost."""
    staged = [message for message in messages if message is not None]
    if len(staged) != len(messages):
        raise TxnLogError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks gave no commit message: "
            "nothing was committed, restart the query to replay the batch"
        )
    return staged


def _run_id(staged: Sequence[StagedBatches], query_id: str, batch_id: int) -> str:
    """The query run that the tasks belong to; a name of its own for a batch without tasks."""
    for message in staged:
        check(message.batch_id == batch_id, "a task of another batch", message=message.batch_id)
        if message.query_id != query_id:
            raise TxnLogError(
                f"the tasks belong to query {message.query_id}, the checkpoint to {query_id}: "
                "set the writer's option checkpointLocation to this query's own checkpoint"
            )
    return next((message.run_id for message in staged), "") or uuid.uuid4().hex


def _identity_of_run(
    held: _Held | None, recorded: RecordedIdentity | None, plan: CommitPlan
) -> ProducerIdentity | None:
    """What this run may go on with; None makes InitProducerId fence everyone else."""
    run = (plan.query_id, plan.run_id)
    if held is not None and (held.query_id, held.run_id) == run:
        return held.identity
    if recorded is None or (recorded.query_id, recorded.run_id) != run:
        return None
    if recorded.transactional_id != plan.transactional_id:
        return None
    return ProducerIdentity(
        recorded.transactional_id, recorded.producer_id, recorded.producer_epoch
    )  # fmt: skip


def _follows(identity: ProducerIdentity | None, plan: CommitPlan) -> bool:
    """Whether this very producer committed the batch before: the protocol then compares nothing."""
    return identity is not None and identity.last_batch_id == plan.batch_id - 1


def _commit_baseline(
    client: Client, identity: ProducerIdentity | None, plan: CommitPlan
) -> tuple[ProducerIdentity | None, Progress]:
    """Make the query's progress exist: all batches before this one, which Spark says are done."""
    found = admin.fetch_progress(client, plan.progress_group_id, plan.query_id)
    if found is not None:
        return identity, found
    baseline = replace(
        plan,
        batch_id=plan.batch_id - 1,
        staged=(),
        group_id=None,
        source_offsets={},
        source_digest="",
        must_exist=False,
    )
    outcome = admin.commit_micro_batch(client, identity, baseline)
    return spent(outcome.identity), outcome.progress


def _leave_transactional_id(
    client: Client, checkpoint: Path, recorded: RecordedIdentity, plan: CommitPlan
) -> None:
    """The query's option or group was changed: nobody may commit under the old id any more.

    InitProducerId with the new id does not fence a driver that holds the old one. Fenced before the
    new id is recorded, since who finds it recorded does not ask for the old one; and once more
    after, for a driver that took the old one in between: whoever takes it later finds the record
    (`_confirm_holder`).
    """
    admin.fence_transactional_id(client, recorded.transactional_id, plan.transaction_timeout_ms)
    checkpoints.write_identity(checkpoint, _record(plan, None, recorded.next_batch_id))
    admin.fence_transactional_id(client, recorded.transactional_id, plan.transaction_timeout_ms)
    logger.warning(
        "query %s goes on with transactional id %s; %s was fenced",
        plan.query_id,
        plan.transactional_id,
        recorded.transactional_id,
    )


def _confirm_holder(checkpoint: Path, plan: CommitPlan) -> None:
    """Raises ProducerFenced when another driver took the query to another transactional id."""
    recorded = checkpoints.read_identity(checkpoint)
    if recorded is None or recorded.transactional_id == plan.transactional_id:
        return
    raise ProducerFenced(
        ErrorCode.PRODUCER_FENCED,
        f"another driver of query {plan.query_id} went on with transactional id "
        f"{recorded.transactional_id!r} while this one was starting with "
        f"{plan.transactional_id!r}. Nothing was written. Stop one of the two",
    )


def _warn_of_missing(plan: CommitPlan, outcome: CommitOutcome) -> None:
    if outcome.missing_sources:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(outcome.missing_sources))
        logger.warning(
            "batch %d is committed without offsets for %s in group %s: the topics were deleted",
            plan.batch_id,
            names,
            plan.group_id,
        )


def _record(
    plan: CommitPlan, identity: ProducerIdentity | None, next_batch_id: int
) -> RecordedIdentity:
    return RecordedIdentity(
        query_id=plan.query_id,
        run_id=plan.run_id if identity is not None else "",
        transactional_id=plan.transactional_id,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.producer_epoch,
        progress_group_id=plan.progress_group_id,
        progress_partition=plan.progress_partition,
        next_batch_id=next_batch_id,
    )


def _place_progress(
    client: Client, settings: SinkSettings, plan: CommitPlan, recorded: RecordedIdentity | None
) -> CommitPlan:
    """Where the query's progress is, else (the first batch) where it is going to be."""
    if recorded is not None and recorded.query_id == plan.query_id:
        plan = replace(
            plan,
            progress_group_id=recorded.progress_group_id or plan.progress_group_id,
            next_batch_id_min=recorded.next_batch_id,
        )
        if recorded.progress_partition is not None:
            return replace(plan, progress_partition=recorded.progress_partition)
    located = admin.locate_progress(client, plan.progress_group_id, plan.query_id)
    return replace(plan, progress_partition=located or _progress_partition(client, settings, plan))


def _progress_partition(client: Client, settings: SinkSettings, plan: CommitPlan) -> Partition:
    """A partition that exists, to commit progress for: of the output, else of the input."""
    if settings.topic is not None:
        return TopicPartition(settings.topic, 0)
    for piece in plan.staged:
        return TopicPartition(piece.topic, piece.partition)
    existing = admin.topic_partitions(client, None)
    for topic, partition in sorted(plan.source_offsets):
        if partition in existing.get(topic, ()):
            return TopicPartition(topic, partition)
    for topic, partitions in sorted(existing.items()):
        return TopicPartition(topic, partitions[0])
    raise TxnLogError(
        "an empty batch cannot be recorded on a cluster without topics: create the output topic, "
        "or set the option topic"
    )
