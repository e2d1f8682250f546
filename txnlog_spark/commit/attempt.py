"""Try of a batch's transaction: its steps, from InitProducerId to the confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txnlog_kafka.operations.effects import Failpoint, Operation
from txnlog_kafka.operations.metadata import confirm_missing, recreated_topics, require_leaders
from txnlog_kafka.operations.offsets import CommittedOffset, fetch_committed
from txnlog_kafka.operations.operation_group import side_by_side
from txnlog_kafka.operations.produce import Produced
from txnlog_kafka.operations.producer import ProducePlan, ProducerIdentity
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.transaction import (
    Transaction,
    add_to_transaction,
    commit_transaction,
    init_producer_id,
)
from txnlog_kafka.operations.transaction_offsets import OffsetsCommitted, commit_all_offsets
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


@dataclass(slots=True)
class TransactionTry:
    """State of one try of the whole batch; the last step decides what may follow an error."""

    plan: LocatedPlan
    number: int = 1
    judged: Evidence | None = None
    """The evidence for the decision to write the batch; None until the batch is judged."""
    is_empty: bool = False
    """True if the batch's rows are already committed under another number."""
    transaction: Transaction | None = None
    began_ms: int = 0
    commit_sent: bool = False
    """True once EndTxn(commit) may have been sent: from here on nothing is aborted."""
    produced: Produced = field(default_factory=Produced)
    missing_sources: frozenset[TopicPartition] = frozenset()

    @property
    def written(self) -> list[TopicPartition]:
        """The partitions that the transaction writes to, in order."""
        staged = self.to_produce.staged
        return sorted({TopicPartition(part.topic, part.partition) for part in staged})

    @property
    def to_produce(self) -> ProducePlan:
        """The records that the transaction has to produce, with the limits for producing them."""
        options, batch = self.plan.committer.options, self.plan.batch
        return ProducePlan(
            batch.batch_id,
            () if self.is_empty else batch.staged,
            options.transaction_timeout_ms,
            options.produce_request_bytes,
        )


# ------------------------------------------------------------------ InitProducerId, the baseline


def initialise(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
    """Get a new producer epoch: it fences all former producers of this id and of former ids."""
    committer, batch_id = plan.committer, plan.batch.batch_id
    yield Failpoint("init_producer_id", "before", batch_id)
    recorded = None if plan.begun is None else (plan.begun.run_id, plan.begun.output)
    if committer.is_query and recorded != (committer.run_id, committer.output):
        yield from record_output(committer)  # once in a run, before its first batch
    timeout_ms = committer.options.transaction_timeout_ms
    identity = yield from init_producer_id(session, committer.transactional_id, timeout_ms)
    if committer.is_query:
        yield from fence_other_ids(session, plan)
    yield Failpoint("init_producer_id", "after", batch_id)
    return identity


def fence_other_ids(session: Session, plan: CommitPlan) -> Operation[None]:
    """Fence the query's former transactional ids. Raises FatalError if the user may not write."""
    committer = plan.committer
    others = yield from other_ids(committer)
    for name, paths in others.items():
        try:
            yield from init_producer_id(session, name, committer.options.transaction_timeout_ms)
        except FatalError as error:
            raise error.with_advice(
                f"Query {committer.output.query_id} had transactional id {name!r} before "
                f"{committer.transactional_id!r}, and a driver with the former id has to be "
                "fenced: allow this user to WRITE with both ids. If no such driver can be running "
                f"any more, delete {' and '.join(paths)} and start the query again"
            ) from None
    before = None if plan.begun is None else plan.begun.output.transactional_id
    if before in others:
        session.notice(
            f"query {committer.output.query_id} continues with transactional id "
            f"{committer.transactional_id}; {before} was fenced"
        )


def commit_baseline(
    session: Session, attempt: TransactionTry, identity: ProducerIdentity
) -> Operation[ProducerIdentity]:
    """Commit `baseline_of` the plan. Return the producer identity for the batch's transaction.

    The baseline is transactional, so that a driver that was overtaken cannot set progress back.
    """
    plan = attempt.plan
    is_new = plan.begun is None  # only a query's first transaction may create the progress's topic
    try:
        yield from require_leaders(session, [plan.place], allow_auto_create=is_new)
    except UnknownTopic:
        if not is_new and (yield from confirm_missing(session, [plan.place])):
            raise missing(plan, topic_is_gone=True) from None
        raise
    transaction = begin_transaction(session, attempt, identity)
    yield from add_progress(session, plan, transaction, baseline_of(plan))
    attempt.commit_sent = True
    yield from commit_transaction(session, transaction, batch_id=plan.batch.batch_id - 1)
    attempt.transaction, attempt.commit_sent = None, False
    return (yield from initialise(session, plan))


# ------------------------------------------------------------------ the topics it writes to


def identify_topics(session: Session, attempt: TransactionTry) -> Operation[dict[str, OutputTopic]]:
    """Return all topics that the query has written to, including the topics of this batch.

    Raises UnknownTopic, and DataLoss if a topic was created again since the query wrote to it.
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
        session.notice(f"{text}; failOnDataLoss=false: the query continues")
        return
    raise DataLoss(
        f"{text}. {plan.wrote_nothing}. Check whether the broker created the topic by itself "
        "(auto.create.topics.enable), with other partitions or another configuration than before. "
        "To continue with the topic as it is now, start the query with the writer's option "
        "failOnDataLoss=false until the batch is done. To write all rows again, start a new "
        "checkpoint with another kafka.group.id and startingOffsets=earliest"
    )


# ------------------------------------------------------------------ what joins the transaction


def begin_transaction(
    session: Session, attempt: TransactionTry, identity: ProducerIdentity
) -> Transaction:
    """Begin a transaction of `identity` in memory; nothing is sent yet."""
    attempt.transaction = Transaction(
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        attempt.plan.version,
    )
    attempt.began_ms = session.monotonic_ms()
    return attempt.transaction


def offsets_of(attempt: TransactionTry) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """Return the offsets that the transaction commits: the source group's, and the progress.

    Offsets that already stand where the batch ends are left out, unless they carry a source's note.
    """
    plan, judged = attempt.plan, attempt.judged
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    if plan.group_id is not None:
        check(plan.group_id != plan.committer.progress_group_id, "progress has a group of its own")
        ends, notes = plan.batch.source_offsets, _notes(plan, judged)
        stand = {} if judged is None else judged.group
        groups[plan.group_id] = {
            p: CommittedOffset(end, notes.get(p, ""))
            for p, end in ends.items()
            if p in notes or stand.get(p) != end
        }
    groups[plan.committer.progress_group_id] = {plan.place: progress_offset(progress_after(plan))}
    return groups


def _notes(plan: LocatedPlan, judged: Evidence | None) -> dict[TopicPartition, str]:
    """Return the note (`GroupNote`) for the first partition of each source.

    The note leaves out the source's id if the rows are needed again (state, foreachBatch).
    """
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
    """Send AddOffsetsToTxn and AddPartitionsToTxn together; transaction version 2 needs neither."""
    batch_id = attempt.plan.batch.batch_id
    yield Failpoint("add_offsets", "before", batch_id)
    if transaction.version < 2:
        groups = offsets_of(attempt)
        yield from add_to_transaction(session, transaction, partitions, groups)
    yield Failpoint("add_offsets", "after", batch_id)


def commit_batch_offsets(
    session: Session,
    attempt: TransactionTry,
    transaction: Transaction,
    *,
    deadline: Deadline | None = None,
) -> Operation[OffsetsCommitted]:
    """Send TxnOffsetCommit: the source group's offsets and the progress join the transaction."""
    plan = attempt.plan
    yield Failpoint("txn_offset_commit", "before", plan.batch.batch_id)
    done = yield from commit_all_offsets(
        session,
        transaction,
        offsets_of(attempt),
        may_be_gone=plan.group_id,
        topic_ids={t: i for s in plan.batch.sources if s.note for t, i in s.note.topic_ids},
        deadline=deadline,
    )
    attempt.missing_sources = done.missing
    yield Failpoint("txn_offset_commit", "after", plan.batch.batch_id)
    return done


def add_progress(
    session: Session, plan: LocatedPlan, transaction: Transaction, progress: Progress
) -> Operation[None]:
    """Add the progress, and nothing else, to the transaction."""
    group_id = plan.committer.progress_group_id
    if transaction.version < 2:
        yield from add_to_transaction(session, transaction, (), [group_id])
    groups = {group_id: {plan.place: progress_offset(progress)}}
    yield from commit_all_offsets(session, transaction, groups, may_be_gone=None)


# ------------------------------------------------------------------ the confirmation
#
# The reason is "A former group coordinator" in docs/internals/commit-protocol.md. A skipped batch
# needs no confirmation: visible progress is committed.


def confirm(
    session: Session, plan: CommitPlan, judged: Evidence, done: OffsetsCommitted
) -> Operation[None]:
    """Raise AbortableError if progress or offsets now differ from the evidence for the batch."""
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
    text = ""
    if found != judged.progress:
        text = (
            f"the progress in group {progress_group_id} is {_shown(found)}, and was "
            f"{_shown(judged.progress)} when {plan.name} was begun"
        )
    for name in names[1:]:
        now = {p: each.committed_offset for p, each in groups[name].items()}
        if not text and any(now.get(p) != judged.group.get(p) for p in plan.batch.source_offsets):
            text = f"the offsets of group {name} are not the offsets that {plan.name} was judged by"
    if text:
        raise AbortableError(
            ErrorCode.NOT_COORDINATOR, f"{text}: a former coordinator of the group has answered"
        )


def _shown(progress: Progress | None) -> str:
    return "nothing" if progress is None else f"batch {progress.next_batch_id - 1}"


def judge_for_certain(
    session: Session, attempt: TransactionTry, facts: Evidence, identity: ProducerIdentity
) -> Operation[Decision]:
    """Judge the batch. Before a ProgressError is raised, prove that the evidence is not outdated.

    If another driver took over between the answers, or a former coordinator has answered, the true
    error is ProducerFenced or AbortableError, and no person has to look (ProgressError).
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
