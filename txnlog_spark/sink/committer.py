"""The driver's part of a write: one Kafka transaction per micro-batch.

Spark builds a new writer in a reused worker process for every commit, and the workers are one pool
for all queries of a session: batch n may be committed in one, n + 1 in another, n + 2 in the first
again. So the producer identity of a query run lives in the checkpoint (`journal`), and what a
worker remembers counts only while the file says the same. A new run of the query begins with a
plain InitProducerId, which fences whatever an older driver still does, but only when it has
something to write: a batch that is committed is skipped without fencing anybody. If the query had
another transactional id before, that one's holder is fenced first.

Kafka deletes a topic's committed offsets with the topic, so all batches of a query commit their
progress for one partition, chosen before the first: of a source, which the query may read anyway,
else of the output.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from txnlog_spark.client import admin
from txnlog_spark.client.driver import Client
from txnlog_spark.connection import client_for, resolve_bootstrap
from txnlog_spark.errors import CommitStateUnknown, ProducerFenced, TxnLogError, check
from txnlog_spark.failpoints import reached
from txnlog_spark.offsets import TopicPartition, by_plain_names
from txnlog_spark.protocol.commit import goes_on
from txnlog_spark.protocol.values import (
    CommitOutcome,
    CommitPlan,
    Partition,
    ProducerIdentity,
)
from txnlog_spark.sink import checkpoint as checkpoints
from txnlog_spark.sink import journal as journals
from txnlog_spark.sink.checkpoint import BatchOffsets
from txnlog_spark.sink.journal import Attempt, CheckpointJournal, RecordedIdentity
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.sink.sources import check_sources, noted_group, pins_records
from txnlog_spark.sink.staging import (
    StagedBatches,
    abandon_message,
    default_root,
    plan_staged,
    remove_all,
    remove_batches,
    remove_other_runs,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """The identity that this process used last for a transactional id, and for which query run."""

    query_id: str
    run_id: str
    identity: ProducerIdentity


_held: dict[tuple[int, str, str], _Held] = {}
_said: set[tuple[str, str]] = set()
"""(run id, text) of what was said once and is not said again for every batch."""


def commit_streaming(
    settings: SinkSettings, messages: Sequence[StagedBatches | None], batch_id: int
) -> None:
    """Commit one micro-batch of a streaming query, exactly once.

    Raises ProducerFenced, CommitStateUnknown, ProgressError, TransactionTimedOut, WrongCluster and
    what the brokers refuse; each time Spark stops the query, and its restart replays the batch.
    """
    reached("S6", "before", batch_id)
    folder = settings.journal_folder
    staged = _complete(messages)
    query_id = checkpoints.read_query_id(settings.checkpoint_path)
    sources = checkpoints.read_batch_offsets(settings.checkpoint_path, batch_id)
    run_id = _run_id(staged, query_id, batch_id)
    reached("S6", "after", batch_id)
    bootstrap_servers = resolve_bootstrap(settings.connection)
    client = client_for(settings.connection, bootstrap_servers)
    cluster_id = client.session.cluster.cluster_id or ""
    check_sources(settings, sources, cluster_id)
    attempt = journals.read_attempt(folder)
    plan = plan_commit(settings, staged, query_id, run_id, batch_id, sources)
    plan = _after_attempt(plan, attempt, cluster_id)
    recorded = journals.read_identity(folder)
    key = (os.getpid(), bootstrap_servers, plan.transactional_id)
    identity = _identity_of_run(_held.pop(key, None), recorded, attempt, plan)
    plan = _place_progress(client, settings, plan, attempt, identity)
    if plan.group_id is not None and not goes_on(identity, plan):
        previous = checkpoints.read_previous_offsets(settings.checkpoint_path, batch_id)
        plan = replace(plan, previous_offsets=by_plain_names(previous))
    if recorded is not None and recorded.query_id == query_id:
        plan = replace(plan, next_batch_id_min=recorded.next_batch_id)
    root = default_root(settings.checkpoint, settings.staging_location)
    staged_as = settings.staging_name(query_id)
    staged_by = next((message.run_id for message in staged), "")
    clear = partial(remove_other_runs, root, staged_as, batch_id, staged_by)
    plan = replace(plan, journal=CheckpointJournal(folder, plan, cluster_id, clear))
    _say_once(settings, plan, sources)
    try:
        outcome = admin.commit_micro_batch(client, identity, plan)
    except ProducerFenced as error:
        raise _explained(error, settings, plan, attempt) from error
    if outcome.identity is not None:
        _held[key] = _Held(query_id, run_id, outcome.identity)
        next_batch_id = outcome.progress.next_batch_id
        journals.write_identity(folder, _record(plan, outcome.identity, next_batch_id))
    _warn_of_missing(plan, outcome)
    remove_batches(root, staged_as, batch_id)
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

    With `txnAppId` and `txnVersion` a write whose version is at or below the last committed one of
    the application is skipped, so that it can be run again. Without them running the job again
    writes the rows again, and the transactional id is the write's own unless the option names one.
    Raises what `commit_streaming` does; CommitStateUnknown only when asking again did not help.
    """
    staged = _complete(messages)
    has_name = settings.txn_app_id is not None
    if not has_name and not any(message.chunks for message in staged):
        return None
    client = client_for(settings.connection)
    plan = _plan_batch_write(settings, staged, write_id)
    plan = replace(plan, progress_partition=_progress_partition(client, settings, plan))
    outcome = _commit_write(client, plan)
    remove_all(default_root(None, settings.staging_location), write_id)
    if has_name:
        if outcome.skipped:
            logger.warning(
                "the write with txnAppId=%s and txnVersion=%d was skipped: version %d is committed",
                settings.txn_app_id,
                plan.batch_id,
                outcome.progress.next_batch_id - 1,
            )
        return outcome
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


def _plan_batch_write(
    settings: SinkSettings, staged: Sequence[StagedBatches], write_id: str
) -> CommitPlan:
    merge_counts(message.partition_counts for message in staged)
    app_id = settings.txn_app_id
    name = write_id if app_id is None else f"txnAppId:{app_id}"
    return CommitPlan(
        query_id=name,
        run_id=write_id,
        batch_id=settings.txn_version if app_id is not None else 0,
        transactional_id=settings.transactional_id_of(
            write_id if app_id is None else f"app-{app_id}"
        ),
        progress_group_id=f"{app_id}.progress"
        if app_id is not None
        else settings.progress_group_of(write_id),
        progress_partition=("", -1),
        staged=tuple(plan_staged(staged)),
        group_id=settings.group_id,
        source_offsets=by_plain_names(settings.source_offsets),
        must_exist=False,
        is_stream=False,
        transaction_timeout_ms=settings.transaction_timeout_ms,
    )


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
    saw different partition counts of one topic.
    """
    merge_counts(message.partition_counts for message in staged)
    source_offsets = by_plain_names(sources.source_offsets)
    group_id = settings.group_id if source_offsets else None
    foreign = [s.offsets for s in sources.sources if s.offsets and s.note is None]
    return CommitPlan(
        query_id=query_id,
        run_id=run_id,
        batch_id=batch_id,
        transactional_id=settings.transactional_id_of(query_id),
        progress_group_id=settings.progress_group_of(query_id),
        progress_partition=("", -1),
        staged=tuple(plan_staged(staged)),
        group_id=group_id,
        source_offsets=source_offsets,
        source_digest=sources.digest,
        batch_hash=sources.batch_hash,
        is_pinned=pins_records(settings, sources),
        must_exist=True,
        expected=sources.expected,
        foreign_sources=tuple(by_plain_names(offsets) for offsets in foreign),
        overwrite_group=settings.overwrite_group_offsets,
        transaction_timeout_ms=settings.transaction_timeout_ms,
    )


def _after_attempt(plan: CommitPlan, attempt: Attempt | None, cluster_id: str) -> CommitPlan:
    """What the checkpoint tells of the query's batches before, and of its transactional id."""
    if attempt is None:
        return replace(plan, must_exist=False)
    changed = attempt.transactional_id not in ("", plan.transactional_id)
    previous_id = attempt.transactional_id if changed else None
    if attempt.query_id != plan.query_id:
        # Left over from another query: its driver may live, its progress says nothing here.
        return replace(plan, must_exist=False, previous_transactional_id=previous_id)
    journals.check_cluster(attempt, cluster_id)
    return replace(
        plan,
        progress_group_id=attempt.progress_group_id or plan.progress_group_id,
        progress_partition=attempt.progress_partition or plan.progress_partition,
        attempted_batch_id=attempt.batch_id,
        attempted_group_digest=attempt.group_digest,
        previous_transactional_id=previous_id,
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
    held: _Held | None,
    recorded: RecordedIdentity | None,
    attempt: Attempt | None,
    plan: CommitPlan,
) -> ProducerIdentity | None:
    """What this run may go on with; None makes InitProducerId fence everyone else.

    Another worker of the run may have committed since this one did: then its record counts. When
    another run has the record, what this worker holds counts, and is fenced as it must be.
    """
    run = (plan.query_id, plan.run_id)
    is_held = held is not None and (held.query_id, held.run_id) == run
    if recorded is not None and (recorded.query_id, recorded.run_id) == run:
        if recorded.transactional_id != plan.transactional_id:
            return None
        located = None if attempt is None else attempt.progress_partition
        known = recorded.identity(located)
        if held is not None and is_held and _is_same_epoch(held.identity, known):
            return held.identity
        return known
    return held.identity if held is not None and is_held else None


def _is_same_epoch(one: ProducerIdentity, other: ProducerIdentity) -> bool:
    return (one.producer_id, one.producer_epoch) == (other.producer_id, other.producer_epoch)


def _explained(
    error: ProducerFenced, settings: SinkSettings, plan: CommitPlan, attempt: Attempt | None
) -> ProducerFenced:
    """The error with what the brokers cannot tell: who took over, where the id comes from."""
    texts = [str(error)]
    if settings.transactional_id is None:
        origin = "kafka.group.id" if settings.group_id is not None else "the query's id"
        texts.append(f"The transactional id {plan.transactional_id!r} was made from {origin}")
    if attempt is not None and attempt.run_id != plan.run_id and attempt.host:
        texts.append(
            f"Batch {attempt.batch_id} of query {attempt.query_id} was begun by process "
            f"{attempt.pid} on host {attempt.host}"
        )
    error.args = (". ".join(texts),)
    return error


def _say_once(settings: SinkSettings, plan: CommitPlan, sources: BatchOffsets) -> None:
    """What is allowed and seldom meant."""
    texts = []
    group_id = noted_group(sources)
    if group_id is not None and settings.group_id is None:
        texts.append(
            f"kafka.group.id={group_id} is set on the reader only: no offsets are committed for "
            "it. Set it on the writer as well"
        )
    read = {source_topic for source_topic, _ in plan.source_offsets}
    if settings.topic is not None and settings.topic in read:
        texts.append(f"the query writes to {settings.topic}, which it reads: it will not end")
    for text in texts:
        if (plan.run_id, text) not in _said:
            _said.add((plan.run_id, text))
            logger.warning("%s", text)


def _warn_of_missing(plan: CommitPlan, outcome: CommitOutcome) -> None:
    if outcome.missing_sources:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(outcome.missing_sources))
        logger.warning(
            "batch %d is committed without offsets for %s in group %s: the topics were deleted",
            plan.batch_id,
            names,
            plan.group_id,
        )


def _record(plan: CommitPlan, identity: ProducerIdentity, next_batch_id: int) -> RecordedIdentity:
    return RecordedIdentity(
        query_id=plan.query_id,
        run_id=plan.run_id,
        transactional_id=plan.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        initialised=identity.initialised,
        last_batch_id=identity.last_batch_id,
        transaction_version=identity.transaction_version,
        next_batch_id=next_batch_id,
    )


def _place_progress(
    client: Client,
    settings: SinkSettings,
    plan: CommitPlan,
    attempt: Attempt | None,
    identity: ProducerIdentity | None,
) -> CommitPlan:
    """Where the query's progress is, else (the first batch) where it is going to be.

    Progress that went with its topic is placed again for a batch that was never begun.
    """
    topic, _ = plan.progress_partition
    if topic and (goes_on(identity, plan) or not _is_gone(client, plan)):
        return plan
    begun = None if attempt is None else attempt.batch_id
    if topic and (begun is None or begun >= plan.batch_id):
        return plan  # whose progress is missing, and has to be missed where it was
    located = None
    if not topic:
        located = admin.locate_progress(client, plan.progress_group_id, plan.query_id)
    place = located or _progress_partition(client, settings, plan)
    return replace(plan, progress_partition=place)


def _is_gone(client: Client, plan: CommitPlan) -> bool:
    topic, number = plan.progress_partition
    if number in client.session.cluster.partitions(topic):
        return False
    return bool(admin.confirm_missing(client, [plan.progress_partition]))


def _progress_partition(client: Client, settings: SinkSettings, plan: CommitPlan) -> Partition:
    """A partition that exists, to commit progress for: of a source, else of the output.

    Committing an offset for a topic takes READ on it, which the query has for its sources.
    """
    if plan.source_offsets:
        missing = admin.confirm_missing(client, plan.source_offsets)
        for partition in sorted(plan.source_offsets):
            if partition not in missing:
                return partition
    if settings.topic is not None:
        return TopicPartition(settings.topic, 0)
    for piece in plan.staged:
        return TopicPartition(piece.topic, piece.partition)
    for topic, partitions in sorted(admin.topic_partitions(client, None).items()):
        return TopicPartition(topic, partitions[0])
    raise TxnLogError(
        "an empty batch cannot be recorded on a cluster without topics: create the output topic, "
        "or set the option topic"
    )
