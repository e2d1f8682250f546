"""Part of `check` that says how far the query is, and what its next start will do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.dry_run import is_group_coordinated
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.journal import check_cluster, other_ids
from txnlog_spark.commit.judgement import Decision
from txnlog_spark.commit.plan import CommitOptions, Committer
from txnlog_spark.commit.query import QueryBatch, foresee_query_batch
from txnlog_spark.commit.refusals import places
from txnlog_spark.errors import TxnLogError
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.location import Location
from txnlog_spark.tools.check_item import (
    MADE_UP_QUERY_ID,
    OK,
    REFUSED,
    WARNING,
    Grant,
    Item,
    Job,
    grants_of,
)
from txnlog_spark.tools.query_state import CheckpointState, ask_brokers, read_checkpoint, target_of

NEXT = "next start"


@dataclass(frozen=True, slots=True)
class Stand:
    """Location and contents of a job's checkpoint; None if the job has no checkpoint yet."""

    location: Location | None = None
    state: CheckpointState | None = None

    @property
    def item(self) -> Item:
        """Line about the checkpoint."""
        state, location = self.state, present(self.location, "a checkpoint was named")
        if state is None:
            return Item("checkpoint", OK, f"nothing is at {location} yet: a new query begins there")
        planned, noted = (n if n >= 0 else "none" for n in (state.last_planned, state.last_noted))
        text = f"{location} is of query {state.query_id}; last batch planned: {planned}, noted as "
        text += f"done by Spark: {noted}"
        if (begun := state.begun) is not None:
            text += f", begun: {begun.batch_id} (process {begun.pid} on host {begun.host or '?'})"
        return Item("checkpoint", OK, text)


def read_stand(location: Location, storage: StorageSettings, sink: str) -> Stand:
    """Read a checkpoint, which need not exist. Raises OptionError, ProgressError, OSError."""
    files = open_files("--checkpoint", location, storage)
    if files.read(f"{location}/metadata") is None and not files.list_folder(f"{location}/offsets"):
        return Stand(location)
    state = read_checkpoint(location, storage, sink)
    if state.begun is not None and state.begun.output.query_id != state.query_id:
        state = replace(state, begun=None)  # of another query, which says nothing here
    return Stand(location, state)


def options_of(job: Job) -> CommitOptions:
    """Return the writer's options, as far as the command line and the checkpoint contain them."""
    topic = job.outputs[0] if len(job.outputs) == 1 else None
    return CommitOptions(job.group, job.transactional_id, topic, job.sink)


def with_recorded(job: Job, stand: Stand) -> Job:
    """Return the job; a group or output that was not named is taken from the checkpoint."""
    if stand.state is None or stand.state.begun is None:
        return job
    target, group = stand.state.begun.output.target, target_of(stand.state).group_id
    outputs = job.outputs or ((target,) if target else ())
    return replace(job, group=group if job.group is None else job.group, outputs=outputs)


def needed_grants(job: Job, stand: Stand) -> list[Grant]:
    """List the grants for the names under which the next batch is committed."""
    options, state = options_of(job), stand.state
    query_id = MADE_UP_QUERY_ID if state is None else state.query_id
    if state is None or state.begun is None:
        made = options.transactional_id_of(query_id), options.progress_group_of(query_id)
        return grants_of(job, query_id, *made)
    output, progress = state.begun.output, state.begun.progress_group_id
    own_id = options.transactional_id_of(query_id, output.transactional_id)
    committer = Committer(output, "", own_id, progress, options, state.path, state.folder)
    former_ids = CommitHost(state.files).run(other_ids(committer))
    return grants_of(job, query_id, own_id, progress, list(former_ids))


def check_query(client: Client, job: Job, stand: Stand) -> Iterator[Item]:
    """Say where group and query are, and what the next start does, if no grant is missing."""
    session, group = client.session, dict[TopicPartition, int]()
    is_used = client.run(is_group_coordinated(session, job.group or "txnlog-check"))
    if job.group is not None:
        if is_used:
            group = client.committed_offsets(job.group, require_stable=False)
        yield Item("group", OK, f"{job.group!r}: {places(group) or 'no offsets yet'}")
    state, location = stand.state, stand.location
    if state is None or location is None or state.last_planned < 0:
        yield new_query_item(job, {p: at for p, at in group.items() if p.topic in job.inputs})
        return
    is_planned = state.last_planned > state.last_noted
    number = state.last_planned if is_planned else state.last_planned + 1
    if state.begun is not None:
        check_cluster(state.begun.output, session.cluster.cluster_id or "")
        brokers = ask_brokers(client, target_of(state))
        done = 0 if brokers.progress is None else brokers.progress.next_batch_id
        yield Item("progress", OK, f"the brokers have committed all batches below {done}")
        if (found := brokers.open_transaction) is not None:
            text = f"transaction of {found.transactional_id!r} is {found.state}: a driver is at "
            text += "work, or died in it; a start takes over, and aborts what is open"
            yield Item("transaction", WARNING, text)
        if done > number and not is_planned:
            text = f"the brokers have batch {done - 1}, the checkpoint ends with batch {number - 1}"
            text += ": it is a backup, or another one went on. Start the newest checkpoint"
            yield Item(NEXT, WARNING, text)
            return
    elif not is_used:  # to look up a coordinator would create the topic of committed offsets
        yield Item(NEXT, OK, words_of(Decision.DO, number, is_planned=is_planned, was_begun=False))
        return
    yield foreseen_item(client, job, state, location, number)


def foreseen_item(
    client: Client, job: Job, state: CheckpointState, location: Location, number: int
) -> Item:
    """Let the commit judge the next batch, without writing. An error of the commit refuses it."""
    is_planned = number == state.last_planned
    batch = QueryBatch(
        checkpoint=location.text,
        location=location.normal,
        batch_id=number,
        options=options_of(job),
        staged=(),
        run_id="",
        is_function=bool(job.sink),
    )
    disk = CommitHost(state.files, location.root, location.normal_root)
    foresee = foresee_query_batch(client.session, batch, is_planned=is_planned)
    try:
        decision = client.run(disk.serve(foresee))
    except TxnLogError as error:
        where = f"--bootstrap-server {job.bootstrap_servers} --checkpoint {location}"
        show = f"python -m txnlog_spark progress show {where}"
        return Item(NEXT, REFUSED, f"batch {number} would be refused: {error}", show)
    was_begun = state.begun is not None and state.begun.batch_id >= number
    return Item(NEXT, OK, words_of(decision, number, is_planned=is_planned, was_begun=was_begun))


def words_of(decision: Decision, number: int, *, is_planned: bool, was_begun: bool) -> str:
    """Say what the next start does with a batch."""
    if not is_planned:
        return f"batch {number} is planned from where batch {number - 1} ended, which is committed"
    if decision is Decision.SKIP:
        return f"batch {number} is committed: Spark runs it again, and the sink skips it"
    if decision is Decision.PASS:
        return f"the rows of batch {number} are committed under another number: it adds none"
    how = "begun" if was_begun else "planned"
    return f"batch {number} was {how} and not committed: it will be done"


def new_query_item(job: Job, group: Mapping[TopicPartition, int]) -> Item:
    """Say where a new query starts."""
    if job.group is None:
        text = "new query without a group: it begins at startingOffsets, and begins there again if "
        text += "its checkpoint is lost. Rows are then written twice (earliest) or left out "
        text += "(latest). Set kafka.group.id on reader and writer"
        return Item(NEXT, WARNING, text)
    if not group:
        text = "new query: begins at the earliest offsets with startingOffsets=committedOrEarliest"
        return Item(NEXT, OK, f"{text}; 'committed' is refused, as the group has none")
    text = f"new query: begins at the group's offsets ({places(group)})"
    return Item(NEXT, OK, f"{text} with startingOffsets=committed; elsewhere is refused")
