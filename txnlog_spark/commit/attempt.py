"""One try of a batch's transaction: its parts, from InitProducerId to the confirmation.

How far it came decides what may follow an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txnlog_kafka.operations.effects import Milestone, Operation
from txnlog_kafka.operations.metadata import confirm_missing, recreated_topics, require_leaders
from txnlog_kafka.operations.offsets import CommittedOffset, fetch_committed
from txnlog_kafka.operations.operation_group import side_by_side
from txnlog_kafka.operations.produce import Produced
from txnlog_kafka.operations.producer import ProducePlan, ProducerIdentity
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.transaction import (
    OffsetsCommitted,
    Transaction,
    add_to_transaction,
    commit_all_offsets,
    commit_transaction,
    init_producer_id,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.journal import other_ids, record_output
from txnlog_spark.commit.judgement import Decision, judge
from txnlog_spark.commit.plan import CommitPlan, Evidence, LocatedPlan, OutputTopic, Progress
from txnlog_spark.commit.progress import (
    baseline_of,
    newest_progress,
    progress_after,
    progress_offset,
)
from txnlog_spark.commit.refusals import missing
from txnlog_spark.errors import AbortableError, DataLoss, FatalError, ProgressError, UnknownTopic
from txnlog_spark.group_note import GroupNote, format_note
from txnlog_spark.offsets import positions_digest

Groups = dict[str, dict[TopicPartition, CommittedOffset]]


@dataclass(slots=True)
class TransactionTry:
    """One try of the whole batch."""

    plan: LocatedPlan
    number: int = 1
    judged: Evidence | None = None
    """What the batch was judged by, once it is to be done."""
    is_empty: bool = False
    """Its rows are committed under another number."""
    transaction: Transaction | None = None
    began_ms: int = 0
    commit_sent: bool = False
    """EndTxn(commit) may have left: from here on nothing is aborted."""
    produced: Produced = field(default_factory=Produced)
    missing_sources: frozenset[TopicPartition] = frozenset()

    @property
    def written(self) -> list[TopicPartition]:
        """The partitions that it writes to, in order."""
        staged = self.to_produce.staged
        return sorted({TopicPartition(part.topic, part.partition) for part in staged})

    @property
    def to_produce(self) -> ProducePlan:
        """What the transaction has to produce."""
        options, batch = self.plan.committer.options, self.plan.batch
        return ProducePlan(
            batch.batch_id,
            () if self.is_empty else batch.staged,
            options.transaction_timeout_ms,
            options.produce_request_bytes,
        )


# ------------------------------------------------------------------ InitProducerId, the baseline


def initialise(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
    """A new epoch, which fences all former producers of the transactional id and of the query's
    others."""
    committer, batch_id = plan.committer, plan.batch.batch_id
    yield Milestone("init_producer_id", "before", batch_id)
    if committer.is_query and not _is_recorded(plan):
        yield from record_output(committer)
    timeout_ms = committer.options.transaction_timeout_ms
    identity = yield from init_producer_id(session, committer.transactional_id, timeout_ms)
    if committer.is_query:
        yield from fence_other_ids(session, plan)
    yield Milestone("init_producer_id", "after", batch_id)
    return identity


def _is_recorded(plan: CommitPlan) -> bool:
    """Whether this run has recorded its output: that comes before its first batch."""
    begun, own = plan.begun, plan.committer
    return begun is not None and (begun.run_id, begun.output) == (own.run_id, own.output)


def fence_other_ids(session: Session, plan: CommitPlan) -> Operation[None]:
    """Nobody may commit under another id of the query any more. Raises FatalError when the user may
    not write with one of them."""
    committer = plan.committer
    others = yield from other_ids(committer)
    for name, paths in others.items():
        try:
            yield from init_producer_id(session, name, committer.options.transaction_timeout_ms)
        except FatalError as error:
            raise error.with_advice(
                f"Query {committer.output.query_id} had transactional id {name!r} before "
                f"{committer.transactional_id!r}, and a driver with it has to be fenced. If none "
                f"can be running any more, delete {' and '.join(paths)} and start the query again"
            ) from None
    before = None if plan.begun is None else plan.begun.output.transactional_id
    if before in others:
        session.notice(
            f"query {committer.output.query_id} goes on with transactional id "
            f"{committer.transactional_id}; {before} was fenced"
        )


def commit_baseline(
    session: Session, attempt: TransactionTry, identity: ProducerIdentity
) -> Operation[ProducerIdentity]:
    """Make the query's progress exist: all batches before this one, which Spark says are done.

    In a transaction of its own, so that a driver which was overtaken cannot set progress back.
    Returns the identity for the batch.
    """
    plan = attempt.plan
    yield from require_progress_topic(session, plan)
    transaction = begin_transaction(session, attempt, identity)
    yield from add_progress(session, plan, transaction, baseline_of(plan))
    attempt.commit_sent = True
    yield from commit_transaction(session, transaction, batch_id=plan.batch.batch_id - 1)
    attempt.transaction, attempt.commit_sent = None, False
    return (yield from initialise(session, plan))


def require_progress_topic(session: Session, plan: LocatedPlan) -> Operation[None]:
    """Create it for a query's first transaction only. Raises ProgressMissing if it was deleted."""
    place = [plan.place]
    is_new = plan.begun is None
    try:
        yield from require_leaders(session, place, allow_auto_create=is_new)
    except UnknownTopic:
        if not is_new and (yield from confirm_missing(session, place)):
            raise missing(plan, topic_is_gone=True) from None
        raise


# ------------------------------------------------------------------ the topics it writes to
#
# A topic that is deleted and created again under its name is another topic: what the query wrote to
# the former one is gone for its readers.


def identify_topics(session: Session, attempt: TransactionTry) -> Operation[dict[str, OutputTopic]]:
    """Return all topics that the query has written to, with those of this batch.

    Raises DataLoss for a topic that was created again since the query wrote to it, unless the
    writer has failOnDataLoss=false; UnknownTopic.
    """
    plan = attempt.plan
    yield from require_leaders(session, attempt.written, allow_auto_create=True)
    known = {} if plan.begun is None else dict(plan.begun.topics)
    written = {partition.topic for partition in attempt.written}
    noted = {t: known[t].topic_id for t in written if t in known and known[t].topic_id}
    recreated = yield from recreated_topics(session, noted)
    cluster = session.cluster
    ids = cluster.topic_ids(written) | noted | recreated
    now = {t: OutputTopic(each, len(cluster.partitions(t))) for t, each in ids.items()}
    if recreated:
        _report(session, plan, {t: (known[t], now[t]) for t in recreated})
    return known | now


def _report(
    session: Session, plan: CommitPlan, changed: Mapping[str, tuple[OutputTopic, OutputTopic]]
) -> None:
    text = "; ".join(
        f"topic {topic} was deleted and created again (topic id {was.topic_id} with "
        f"{was.partitions} partitions before, {now.topic_id} with {now.partitions} now)"
        for topic, (was, now) in sorted(changed.items())
    )
    text = f"{text}: the rows that {plan.query} had committed in it are gone for its readers"
    if not plan.committer.options.fail_on_data_loss:
        session.notice(f"{text}; failOnDataLoss=false: the query goes on")
        return
    raise DataLoss(
        f"{text}. {plan.wrote_nothing}. Look whether the broker created it by itself "
        "(auto.create.topics.enable) with other partitions or another configuration than it had. "
        "To go on with the topic as it is now, start the query with the writer's option "
        "failOnDataLoss=false until the batch is done. To write all rows again, start a new "
        "checkpoint with another group.id and startingOffsets=earliest"
    )


# ------------------------------------------------------------------ what joins the transaction


def begin_transaction(
    session: Session, attempt: TransactionTry, identity: ProducerIdentity
) -> Transaction:
    """A transaction of `identity`; nothing is sent."""
    attempt.transaction = Transaction(
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        attempt.plan.version,
    )
    attempt.began_ms = session.monotonic_ms()
    return attempt.transaction


def offsets_of(plan: LocatedPlan, judged: Evidence | None) -> Groups:
    """Return what the batch's transaction commits: offsets of the source group, and the progress.

    Offsets that stand where the batch ends are left out, but for those with a source's note.
    """
    groups: Groups = {}
    if plan.group_id is not None:
        check(plan.group_id != plan.committer.progress_group_id, "progress has a group of its own")
        ends, notes = plan.batch.source_offsets, _notes(plan, judged)
        stand = {} if judged is None else judged.group
        groups[plan.group_id] = {
            p: CommittedOffset(end, notes.get(p, ""))
            for p, end in ends.items()
            if p in notes or stand.get(p) != end
        }
    groups[plan.committer.progress_group_id] = _placed(plan, progress_after(plan))
    return groups


def _notes(plan: LocatedPlan, judged: Evidence | None) -> dict[TopicPartition, str]:
    """Return the text beside the first partition of each source (`GroupNote`): state and a function
    of foreachBatch need rows again."""
    committer, batch = plan.committer, plan.batch
    are_needed = committer.leaves_out_batches or judged is None or judged.has_state
    notes = {}
    for source in batch.sources:
        source_id = "" if are_needed else source.source_id
        digest, query_id = positions_digest(source.offsets), committer.output.query_id
        note = GroupNote(query_id, batch.batch_id, digest, source_id)
        notes[min(source.offsets)] = format_note(note)
    return notes


def add_groups(
    session: Session,
    attempt: TransactionTry,
    transaction: Transaction,
    partitions: Sequence[TopicPartition] = (),
) -> Operation[None]:
    """AddOffsetsToTxn of each group, at the same time AddPartitionsToTxn, on transaction version 1;
    on version 2 nothing is asked."""
    batch_id = attempt.plan.batch.batch_id
    yield Milestone("add_offsets", "before", batch_id)
    if transaction.version < 2:
        groups = offsets_of(attempt.plan, attempt.judged)
        yield from add_to_transaction(session, transaction, partitions, groups)
    yield Milestone("add_offsets", "after", batch_id)


def commit_batch_offsets(
    session: Session,
    attempt: TransactionTry,
    transaction: Transaction,
    *,
    deadline: Deadline | None = None,
) -> Operation[OffsetsCommitted]:
    """TxnOffsetCommit: the source group's offsets and the progress join the transaction."""
    plan = attempt.plan
    yield Milestone("txn_offset_commit", "before", plan.batch.batch_id)
    done = yield from commit_all_offsets(
        session,
        transaction,
        offsets_of(plan, attempt.judged),
        may_be_gone=plan.group_id,
        deadline=deadline,
    )
    attempt.missing_sources = done.missing
    yield Milestone("txn_offset_commit", "after", plan.batch.batch_id)
    return done


def add_progress(
    session: Session, plan: LocatedPlan, transaction: Transaction, progress: Progress
) -> Operation[None]:
    """The progress alone becomes part of the transaction."""
    group_id = plan.committer.progress_group_id
    if transaction.version < 2:
        yield from add_to_transaction(session, transaction, (), [group_id])
    groups = {group_id: _placed(plan, progress)}
    yield from commit_all_offsets(session, transaction, groups, may_be_gone=None)


def _placed(plan: LocatedPlan, progress: Progress) -> dict[TopicPartition, CommittedOffset]:
    return {plan.place: progress_offset(progress)}


# ------------------------------------------------------------------ the confirmation
#
# Why what a batch is judged by is read again: "A former group coordinator" in
# docs/internals/commit-protocol.md. A batch that is refused has no TxnOffsetCommit, so its
# transaction is begun and aborted, without records. A skipped one needs no confirmation: progress
# that is visible is committed.


def confirm(
    session: Session, plan: CommitPlan, judged: Evidence, done: OffsetsCommitted
) -> Operation[None]:
    """After TxnOffsetCommit, raise AbortableError if progress or offsets are not what the batch was
    judged by: it has to be judged again."""
    progress_group_id, group_id = plan.committer.progress_group_id, plan.group_id
    names = [progress_group_id]
    if group_id is not None and plan.committer.is_query:
        names.append(group_id)
    unread = [name for name in names if name not in done.behind]
    read = yield from side_by_side(
        session.monotonic_ms,
        *(fetch_committed(session, name, require_stable=False) for name in unread),
    )
    groups = {**done.behind, **dict(zip(unread, read, strict=True))}
    found = newest_progress(plan.committer.output.query_id, groups[progress_group_id].values())
    if found != judged.progress:
        raise _of_a_former_coordinator(
            f"the progress in group {progress_group_id} is {_shown(found)}, and was "
            f"{_shown(judged.progress)} when {plan.name} was begun"
        )
    for name in names[1:]:
        now = {p: each.committed_offset for p, each in groups[name].items()}
        if any(now.get(p) != judged.group.get(p) for p in plan.batch.source_offsets):
            raise _of_a_former_coordinator(
                f"the offsets of group {name} are not those that {plan.name} was judged by"
            )


def _of_a_former_coordinator(text: str) -> AbortableError:
    return AbortableError(
        ErrorCode.NOT_COORDINATOR, f"{text}: a former coordinator of the group has answered"
    )


def _shown(progress: Progress | None) -> str:
    return "nothing" if progress is None else f"batch {progress.next_batch_id - 1}"


def judge_for_certain(
    session: Session, attempt: TransactionTry, facts: Evidence, identity: ProducerIdentity
) -> Operation[Decision]:
    """What was asked one after the other may contradict itself when another driver took over, or a
    former coordinator has answered: the truth is ProducerFenced then, or AbortableError, and not
    that a person has to look (ProgressError).
    """
    plan = attempt.plan
    try:
        return judge(plan, facts)
    except ProgressError:
        if (yield from confirm_missing(session, [plan.place])):
            raise  # nothing can be committed for it
        transaction = begin_transaction(session, attempt, identity)
        yield from add_groups(session, attempt, transaction)
        done = yield from commit_batch_offsets(session, attempt, transaction)
        yield from confirm(session, plan, facts, done)
        raise
