"""The two files that the sink keeps in the checkpoint, under `txnlog/`.

`attempt.json` is the last batch whose transaction may have begun, written and flushed *before* it
begins, with where the query's progress lies and on which cluster. Its existence says that progress
must exist, unless a batch comes that was never begun. It never goes back to an earlier batch.

`identity.json` is the producer identity after the last commit, whole, so that any worker process of
the run goes on from it without asking for a new one. It is written without a flush: a lost or torn
one costs an InitProducerId, nothing else. It never goes back either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from txnlog_spark.commit.files import json_of, read_file, text_of, unreadable, write_file
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.errors import ProducerFenced, ProgressError, WrongCluster
from txnlog_spark.protocol.effects import Operation, RunBegan
from txnlog_spark.protocol.values import ProducerIdentity
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.topics import TopicPartition

ATTEMPT_VERSION = 1
IDENTITY_VERSION = 3
"""Files of version 1 and 2 are read: they said less, and where the progress lies."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last batch that was begun, None when that is not known, and what the query depends on."""

    query_id: str
    batch_id: int | None
    run_id: str
    transactional_id: str
    progress_group_id: str
    progress_partition: TopicPartition | None
    group_digest: str = ""
    cluster_id: str = ""
    host: str = ""
    pid: int = -1


@dataclass(frozen=True, slots=True)
class RecordedIdentity:
    """The producer that committed last, and the query run that it belongs to.

    The brokers must have at least `next_batch_id`.
    """

    query_id: str
    run_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    initialised: bool = False
    last_batch_id: int | None = None
    transaction_version: int = 0
    next_batch_id: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What versions 1 and 2 of the file held beside it."""

    def identity(self) -> ProducerIdentity:
        """What the next commit of the run goes on with.

        On transaction version 1 an epoch outlives a transaction, with sequences that are not here:
        another worker asks for a new epoch.
        """
        goes_on = self.initialised and self.transaction_version >= 2
        return ProducerIdentity(
            self.transactional_id,
            self.producer_id,
            self.producer_epoch,
            initialised=goes_on,
            last_batch_id=self.last_batch_id if goes_on else None,
            transaction_version=self.transaction_version if goes_on else 0,
        )


def read_attempt(folder: str) -> Operation[Attempt | None]:
    """The recorded attempt, None before the first. Raises ProgressError if it is unreadable."""
    path = f"{folder}/attempt.json"
    data = yield from read_file(path)
    if data is not None:
        return _attempt_of(path, data)
    identity_path = f"{folder}/identity.json"
    identity = yield from read_file(identity_path)
    if identity is None:
        return None
    data = yield from read_file(path)  # another driver may have written both since
    if data is not None:
        return _attempt_of(path, data)
    return _attempt_before_version_3(identity_path, identity)


def _attempt_of(path: str, data: bytes) -> Attempt:
    value = json_of(path, text_of(path, data))
    try:
        if value.pop("version") != ATTEMPT_VERSION:
            raise unreadable(path, "it is of a newer version of txnlog_spark")
        located = _located(value.pop("progress_partition"))
        return Attempt(**value, progress_partition=located)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise unreadable(path, f"unexpected content: {error}") from error


def write_attempt(folder: str, attempt: Attempt) -> Operation[None]:
    """Replace the recorded attempt, durably. Raises ProgressError."""
    value = {"version": ATTEMPT_VERSION, **asdict(attempt)}
    data = json.dumps(value, indent=1).encode()
    yield from write_file(f"{folder}/attempt.json", data, durable=True)


def read_identity(folder: str) -> Operation[RecordedIdentity | None]:
    """The recorded identity, None without a usable one: then the next commit asks for a new one."""
    try:
        data = yield from read_file(f"{folder}/identity.json")
    except ProgressError:
        return None
    return None if data is None else _identity_of(data)


def _identity_of(data: bytes) -> RecordedIdentity | None:
    try:
        value = json.loads(data)
        version = value.pop("version")
        if version == IDENTITY_VERSION:
            return RecordedIdentity(**value)
        if version not in (1, 2):
            return None
        names = ("query_id", "run_id", "transactional_id", "producer_id", "producer_epoch")
        extra = {name: value.get(name) for name in ("progress_group_id", "progress_partition")}
        fields = {name: value[name] for name in names}
        return RecordedIdentity(**fields, next_batch_id=value.get("next_batch_id", 0), extra=extra)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def write_identity(
    folder: str, identity: RecordedIdentity, *, was_skipped: bool = False
) -> Operation[bool]:
    """Replace the recorded identity; False when what is recorded is ahead of it.

    A worker that was stopped after its commit, while another went on, must not set it back. Nor
    does who found the batch committed, by another run whose record it is: that one may live.
    """
    recorded = yield from read_identity(folder)
    if recorded is not None and recorded.query_id == identity.query_id:
        if recorded.next_batch_id > identity.next_batch_id:
            return False
        same_batch = recorded.next_batch_id == identity.next_batch_id
        if was_skipped and same_batch and recorded.run_id != identity.run_id:
            return False
        same = recorded.producer_id == identity.producer_id
        if same and recorded.producer_epoch > identity.producer_epoch:
            return False
    value = {"version": IDENTITY_VERSION, **asdict(identity)}
    del value["extra"]
    data = json.dumps(value, indent=1).encode()
    yield from write_file(f"{folder}/identity.json", data, durable=False)
    return True


def _attempt_before_version_3(path: str, data: bytes) -> Attempt:
    """What identity.json said before there was attempt.json; the last batch may have been begun.

    Raises ProgressError for one that says nothing: with it a query has committed, which must not be
    taken for its first start.
    """
    recorded = _identity_of(data)
    if recorded is None or not recorded.extra:
        raise unreadable(path, "it is damaged, or attempt.json beside it is gone")
    return Attempt(
        recorded.query_id,
        recorded.next_batch_id or None,
        recorded.run_id,
        recorded.transactional_id,
        str(recorded.extra["progress_group_id"] or ""),
        _located(recorded.extra["progress_partition"]),
    )


def _located(partition: Any) -> TopicPartition | None:
    """Where progress lies, of the JSON `[topic, number]` or null."""
    return None if partition is None else TopicPartition(str(partition[0]), int(partition[1]))


def check_cluster(attempt: Attempt, cluster_id: str) -> None:
    """Raises WrongCluster when the query's batches were written to another cluster before."""
    if attempt.cluster_id in ("", cluster_id) or not cluster_id:
        return
    raise WrongCluster(
        f"query {attempt.query_id} has written to cluster {attempt.cluster_id} so far, and "
        f"kafka.bootstrap.servers of the writer now leads to cluster {cluster_id}. Nothing was "
        "written. Set it back; or, to write to the new cluster from here on, start the query with "
        "a new checkpoint"
    )


@dataclass(frozen=True, slots=True)
class Journal:
    """The record of what was begun, for one commit; `host` and `pid` say who begins it.

    `previous_run_id` is the run that had begun the last batch when this commit was planned, before
    it fenced anybody; "" when there was none.
    """

    folder: str
    cluster_id: str
    host: str = ""
    pid: int = -1
    previous_run_id: str = ""

    def begin(self, plan: CommitPlan) -> Operation[None]:
        """Record the batch, durably, before its transaction begins: its outcome may be unknown.

        Raises ProducerFenced when a later one was begun.
        """
        recorded = yield from self._recorded(plan)
        begun = None if recorded is None else recorded.batch_id
        if begun is not None and begun > plan.batch_id:
            raise ProducerFenced(
                ErrorCode.PRODUCER_FENCED,
                f"another driver of query {plan.query_id} went on: it has begun batch "
                f"{begun}, this one was about to begin batch {plan.batch_id}. Nothing "
                "was written. Stop one of the two",
            )
        attempt = Attempt(
            query_id=plan.query_id,
            batch_id=plan.batch_id,
            run_id=plan.run_id,
            transactional_id=plan.transactional_id,
            progress_group_id=plan.progress_group_id,
            progress_partition=plan.progress_partition,
            group_digest=group_digest(plan.group_id if plan.source_offsets else None),
            cluster_id=self.cluster_id,
            host=self.host,
            pid=self.pid,
        )
        if attempt != recorded:
            yield from write_attempt(self.folder, attempt)
        run_id = "" if recorded is None else recorded.run_id
        # A run that has begun since may have fenced this one, and lives: what it staged stays.
        if run_id != plan.run_id and run_id == self.previous_run_id:
            yield RunBegan()

    def _recorded(self, plan: CommitPlan) -> Operation[Attempt | None]:
        recorded = yield from read_attempt(self.folder)
        is_ours = recorded is not None and recorded.query_id == plan.query_id
        return recorded if is_ours else None
