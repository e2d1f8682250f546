"""Exactly-once for `writeStream.foreachBatch`: update mode, several sinks, any plan.

    from txnlog_spark import foreach_batch

    def as_records(counts):                       # a DataFrame with the columns of the sink
        return counts.selectExpr("word AS key", "CAST(count AS STRING) AS value")

    (words.groupBy("word").count()
     .writeStream.outputMode("update")
     .option("checkpointLocation", "checkpoints/words")
     .foreachBatch(foreach_batch(as_records, checkpointLocation="checkpoints/words", topic="counts",
                                 **{"kafka.bootstrap.servers": "host:9092", "group.id": "words"}))
     .start())

A plain batch write does not know its micro-batch. `foreach_batch` passes the micro-batch's number,
and commits as the sink of `format("txnlog")` does: output, source offsets and progress in one Kafka
transaction, and a batch that is already committed is skipped. You must pass the query's own
checkpointLocation, because Spark does not pass it to a batch write either.

Several Kafka sinks of one query are several transactions, one after another or in parallel in
threads of your function. Give each sink its own `name`. Each sink is exactly-once; for a moment a
reader may see the output of the first sink without the output of the second. Only the sink that is
called last may have `kafka.group.id`: the group must not be ahead of any output. A sink may be left
out in a batch. It is called at most once for a batch; after an error it may be called again.

In Spark Connect the function is pickled and runs on the server's side, in a separate process for
each run of the query.
"""

from __future__ import annotations

import re
import threading
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txnlog_spark.errors import OptionError
from txnlog_spark.process_local import process_local
from txnlog_spark.storage.location import read_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[A-Za-z0-9_-]*")
_OURS = ("txnVersion", "txnAppId", "sinkName", "sinkRun", "sinkGroup", "sourceOffsets")


@dataclass(slots=True)
class _Run:
    """Run of a query as this process writes it, with the batches that it has written."""

    session_id: str
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    written: dict[str, int] = field(default_factory=dict)
    """Last batch that each sink has written or is writing, by the sink's name."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards `written`: several sinks may write in their own threads."""
    sinks: frozenset[str] = frozenset()
    """Names of the query's sinks when the run began."""

    def begin(self, name: str, batch_id: int) -> None:
        """Note that a sink writes a batch. Raises OptionError for a second write of a batch by one
        sink: the commit would skip its rows."""
        with self.lock:
            is_first = self.written.get(name) != batch_id
            self.written[name] = batch_id
        if is_first:
            return
        again = "the sink without a name" if not name else f"the sink {name!r}"
        raise OptionError(
            "name",
            None,
            f"{again} has written batch {batch_id} of this query already, and a batch is written "
            "once: the rows of this second call would be taken for the same rows, and be missing. "
            "They are not written. Leave the sink that wrote it as it is, and write the other rows "
            "with a sink that has a name of its own: foreach_batch(..., name=...)",
        )

    def failed(self, name: str) -> None:
        """Let the sink write its batch again after an error."""
        with self.lock:
            del self.written[name]


class _Runs:
    """Queries that this process writes: their sinks, and the latest run of each query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, _Run] = {}
        self._sinks: weakref.WeakValueDictionary[tuple[str, str], ForeachBatchSink]
        self._sinks = weakref.WeakValueDictionary()

    def add(self, sink: ForeachBatchSink) -> None:
        """Register a new sink; in a notebook it replaces the former sink of its name."""
        with self._lock:
            self._sinks[sink.where, sink.name] = sink

    def run_of(self, where: str, session_id: str) -> _Run:
        """Return the query's run, which all its sinks share. A new Spark session is a new run."""
        with self._lock:
            run = self._latest.get(where)
            if run is None or run.session_id != session_id:
                names = frozenset(name for place, name in self._sinks if place == where)
                run = self._latest[where] = _Run(session_id, sinks=names)
            return run

    def owner(self, sink: ForeachBatchSink, run: _Run) -> ForeachBatchSink | None:
        """Return the query's other sink that has a group; None if `sink` has one, or no sink has.

        Raises OptionError for a sink with a group that was made after other sinks had written, and
        for several sinks with one group: the group's offsets would be ahead of an output.
        """
        with self._lock:
            sinks = [each for each in self._sinks.values() if each.where == sink.where]
        others = {each.name: each for each in sinks if each.name != sink.name and each.group_id}
        if sink.group_id is None:
            return next(iter(others.values()), None)
        if sink.name not in run.sinks:
            raise OptionError(
                "group.id",
                sink.group_id,
                f"make the sink {sink.name!r} before the query is started, outside of the function "
                "of foreachBatch: other sinks of the query have written already, and are to be "
                "compared with the group before",
            )
        twice = [each.name for each in others.values() if each.group_id == sink.group_id]
        if twice:
            raise OptionError(
                "group.id",
                sink.group_id,
                f"set it for the sink that is called last only, not for {sink.name!r} and "
                f"{twice[0]!r}: the group must not be ahead of an output",
            )
        return None


QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Local property of the thread that runs a query, with the query's id."""


class ForeachBatchSink:
    """Sink of a query: the function that `foreach_batch` returns."""

    def __init__(
        self,
        transform: Callable[[DataFrame], DataFrame] | None,
        name: str,
        checkpoint: str,
        options: dict[str, str],
    ) -> None:
        """Register the sink. Raises OptionError if the checkpoint's location cannot be parsed."""
        self._transform = transform
        self.name = name
        self._options = options
        self.where = read_location("checkpointLocation", checkpoint).normal
        """Normal form of the location of the query's checkpoint."""
        lower = {key.lower(): value for key, value in options.items()}
        self.group_id = lower.get("kafka.group.id") or lower.get("group.id")
        """Group for which the sink commits the query's offsets; None without a group."""
        process_local(_Runs).add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Register the copy as a sink of the process that unpickles it, as in Spark Connect."""
        vars(self).update(state)
        process_local(_Runs).add(self)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the batch. Raises OptionError and the errors of the commit."""
        rows = batch if self._transform is None else self._transform(batch)
        runs = process_local(_Runs)
        run = runs.run_of(self.where, _activated(rows.sparkSession))
        owner = runs.owner(self, run)
        run.begin(self.name, batch_id)
        try:
            writer = rows.write.format("txnlog").mode("append").options(**self._options)
            if owner is not None:
                writer = writer.option("sinkGroup", f"{owner.name}:{owner.group_id}")
            writer.option("txnVersion", str(batch_id)).option("sinkRun", run.run_id).save()
        except BaseException:
            run.failed(self.name)
            raise


def foreach_batch(
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    name: str = "",
    **options: object,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each micro-batch exactly once.

    `transform` turns the micro-batch into the rows to write, with columns as for
    `format("txnlog")`; without `transform` the micro-batch is written unchanged. `options` are
    options of `writeStream.format("txnlog")`, and `checkpointLocation` must equal the query's.
    `name` distinguishes several sinks of one query; it is stored in the checkpoint and must not
    change. Raises OptionError, and the function raises it too if a batch is written twice under one
    name.
    """
    given = {key: str(value) for key, value in options.items() if value is not None}
    lower = {key.lower(): value for key, value in given.items()}
    checkpoint = lower.get("checkpointlocation")
    if checkpoint is None:
        raise OptionError(
            "checkpointLocation",
            None,
            "set it to the query's own checkpointLocation: foreach_batch(..., "
            "checkpointLocation=...); the exactly-once commit reads Spark's offset log there",
        )
    for option in _OURS:
        if option.lower() in lower:
            raise OptionError(option, None, "remove it: foreach_batch sets it for each micro-batch")
    if not _NAME.fullmatch(name):
        raise OptionError("name", name, "letters, digits, _ and - only")
    if name:
        given["sinkName"] = name
    return ForeachBatchSink(transform, name, checkpoint, given)


def _activated(session: SparkSession) -> str:
    """Return the id of the session of the query's run; Spark creates a session for each run.

    Classic Spark finds a Python data source by the active session, which belongs to a thread.
    Threads that the user's function has started have no active session, so it is set here.
    """
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return str(session.session_id)  # type: ignore[attr-defined]  # Spark Connect's
    sessions: Any = session.sparkContext._jvm
    sessions = sessions.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    if active.isDefined() and session.sparkContext.getLocalProperty(QUERY_ID_PROPERTY):
        # This is the query's own thread; the rows may be of another session.
        return str(active.get().sessionUUID())
    sessions.setActiveSession(java)
    return str(java.sessionUUID())
