"""State of a query's progress: the contents of its checkpoint, and the brokers' answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.admin import TransactionDescription
from txnlog_kafka.operations.offsets import fetch_committed
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import newest_batch, read_query_id
from txnlog_spark.commit.journal import ended_with, journal_folder, read_begun
from txnlog_spark.commit.plan import Begun, CommitOptions, Progress
from txnlog_spark.commit.progress import group_digest, locate_progress, newest_progress
from txnlog_spark.errors import ProgressError
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.location import Location

_PROGRESS = ".progress."
DONE_STATES = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
"""States of a transactional id without an open transaction."""


@dataclass(frozen=True, slots=True)
class Target:
    """Query, and the names under which it stores its progress."""

    query_id: str
    transactional_id: str
    progress_group_id: str
    group_id: str | None
    progress_partition: TopicPartition | None = None


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """State of a checkpoint; -1 stands for no batch.

    `last_planned` is the newest batch that Spark planned, `last_noted` the newest that Spark noted
    as done. `begun` is the batch that this sink began last, None before the sink's first batch.
    """

    files: Files
    path: str
    folder: str
    query_id: str
    last_planned: int
    last_noted: int
    begun: Begun | None


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Brokers' answers about a query. Reading them does not wait for an open transaction."""

    cluster_id: str
    progress: Progress | None
    progress_partition: TopicPartition | None
    transaction: TransactionDescription | None
    group_offsets: dict[TopicPartition, int]

    @property
    def open_transaction(self) -> TransactionDescription | None:
        """Transaction of the query, if it is open."""
        found = self.transaction
        return found if found is not None and found.state not in DONE_STATES else None


def read_checkpoint(
    checkpoint: Location, storage: StorageSettings, sink: str = ""
) -> CheckpointState:
    """Read the state of a checkpoint. Raises OptionError; ProgressError if it is none."""
    files = open_files("--checkpoint", checkpoint, storage)
    folder, disk = journal_folder(checkpoint.text, sink), CommitHost(files)
    return CheckpointState(
        files=files,
        path=checkpoint.text,
        folder=folder,
        query_id=disk.run(read_query_id(checkpoint.text)),
        last_planned=disk.run(newest_batch(checkpoint.text)),
        last_noted=disk.run(newest_batch(checkpoint.text, "commits")),
        begun=disk.run(read_begun(folder)),
    )


def target_of(state: CheckpointState) -> Target:
    """Return the names in the sink's record in the checkpoint. Raises ProgressError without it."""
    begun = state.begun
    if begun is None or begun.output.query_id != state.query_id:
        raise ProgressError(
            f"query {state.query_id} has begun no batch with format('txnlog') and this checkpoint "
            "yet: it has no progress, and none is asked for when it begins. The sinks of "
            "foreach_batch that have a name are shown with --sink NAME"
        )
    owner, found, _ = begun.progress_group_id.rpartition(_PROGRESS)
    is_group = found and begun.group_digest == group_digest(owner)
    return Target(
        begun.output.query_id,
        begun.output.transactional_id,
        begun.progress_group_id,
        owner if is_group else None,
        begun.progress_partition,
    )


def named_target(group_id: str, query_id: str, transactional_id: str | None) -> Target:
    """Return the names that the sink gives to a query with this group."""
    options = CommitOptions(group_id=group_id, transactional_id=transactional_id)
    return Target(
        query_id,
        options.transactional_id_of(query_id),
        options.progress_group_of(query_id),
        group_id,
    )


def ask_brokers(client: Client, target: Target) -> BrokerState:
    """Ask the brokers about a query."""
    session = client.session
    group = target.progress_group_id
    committed = client.run(fetch_committed(session, group, require_stable=False))
    located = client.run(locate_progress(session, group, target.query_id))
    offsets: dict[TopicPartition, int] = {}
    if target.group_id is not None:
        offsets = client.committed_offsets(target.group_id, require_stable=False)
    return BrokerState(
        cluster_id=session.cluster.cluster_id or "",
        progress=newest_progress(target.query_id, committed.values()),
        progress_partition=located,
        transaction=client.describe_transaction(target.transactional_id),
        group_offsets=offsets,
    )


def described(
    target: Target, brokers: BrokerState, checkpoint: CheckpointState | None
) -> dict[str, Any]:
    """Return the whole state by name, as JSON values; None for an unknown value."""
    progress, transaction = brokers.progress, brokers.transaction
    found: dict[str, Any] = {
        "query_id": target.query_id,
        "cluster_id": brokers.cluster_id,
        "transactional_id": target.transactional_id,
        "transaction_state": None if transaction is None else transaction.state,
        "progress_group_id": target.progress_group_id,
        "progress_partition": _name(brokers.progress_partition),
        "next_batch_id": None if progress is None else progress.next_batch_id,
        "source_digest": None if progress is None else progress.source_digest,
        "group_digest": None if progress is None else progress.group_digest,
        "batch_hash": None if progress is None else progress.batch_hash,
        "group_id": target.group_id,
        "group_offsets": {_name(p): at for p, at in sorted(brokers.group_offsets.items())},
    }
    if checkpoint is not None:
        begun = present(checkpoint.begun, "a target was read from the checkpoint's record")
        found["checkpoint"] = {
            "last_batch_in_offsets": _batch(checkpoint.last_planned),
            "last_batch_in_commits": _batch(checkpoint.last_noted),
            "last_batch_begun": begun.batch_id,
            "progress_partition": _name(begun.progress_partition),
        }
    return found


def after_setting(begun: Begun, next_batch_id: int, partition: TopicPartition) -> Begun:
    """Return the sink's record after progress was set by hand.

    The record must not name a batch beyond the next one: the query has not begun it.
    """
    clamped = min(max(begun.batch_id, next_batch_id - 1), next_batch_id)
    return replace(
        begun,
        batch_id=clamped,
        progress_partition=partition,
        run_id="",
        ended_runs=ended_with(begun),
    )


def _name(partition: TopicPartition | None) -> str | None:
    return None if partition is None else str(partition)


def _batch(number: int) -> int | None:
    return None if number < 0 else number
