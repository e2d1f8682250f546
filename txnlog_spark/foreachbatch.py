"""Exactly-once out of `writeStream.foreachBatch`: update mode, several sinks, any plan.

    from txnlog_spark import foreach_batch

    def as_records(counts):                       # a DataFrame with the columns of the sink
        return counts.selectExpr("word AS key", "CAST(count AS STRING) AS value")

    (words.groupBy("word").count()
     .writeStream.outputMode("update")
     .option("checkpointLocation", "checkpoints/words")
     .foreachBatch(foreach_batch(as_records, checkpointLocation="checkpoints/words", topic="counts",
                                 **{"kafka.bootstrap.servers": "host:9092", "group.id": "words"}))
     .start())

A batch write does not know which micro-batch it belongs to; here it is given one, and is then
committed as the sink of `format("txnlog")` commits one: output, source offsets and progress in one
Kafka transaction, a batch that comes again skipped. What is needed is the query's own checkpoint,
which Spark does not tell to a batch write either.

Several Kafka sinks of one query are several transactions, one after the other or side by side, in
threads of the function's own: give each a `name` of its own. Each is exactly-once; a reader may see
the first without the second for a moment. Only the one that is called last may have
`kafka.group.id`: the group must not be ahead of any output. A sink need not be called for each
batch, and is called once for a batch; after an error it may be called again.

In Spark Connect the function is pickled and runs beside the server, in a process of its own for
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
    """One run of a query, as far as this process writes it; what it has written for which batch."""

    session_id: str
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    written: dict[str, int] = field(default_factory=dict)
    """The last batch that was written, or is being written, by the sink's name."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Several sinks may write in threads of their own."""
    sinks: frozenset[str] = frozenset()
    """The names of the query's sinks when the run began."""

    def begin(self, name: str, batch_id: int) -> None:
        """Raises OptionError for a second write of a batch under one name: it would be skipped."""
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
        """The sink may write its batch again."""
        with self.lock:
            del self.written[name]


class _Runs:
    """The queries that this process writes: their sinks, and the latest run of each query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, _Run] = {}
        self._sinks: weakref.WeakValueDictionary[tuple[str, str], ForeachBatchSink]
        self._sinks = weakref.WeakValueDictionary()

    def add(self, sink: ForeachBatchSink) -> None:
        """Take a sink that was made; it replaces the former one of its name, as in a notebook."""
        with self._lock:
            self._sinks[sink.where, sink.name] = sink

    def run_of(self, where: str, session_id: str) -> _Run:
        """Return the run, which all sinks of the query share."""
        with self._lock:
            run = self._latest.get(where)
            if run is None or run.session_id != session_id:
                names = frozenset(name for place, name in self._sinks if place == where)
                run = self._latest[where] = _Run(session_id, sinks=names)
            return run

    def owner(self, sink: ForeachBatchSink, run: _Run) -> ForeachBatchSink | None:
        """Return another sink of the query that has its group, None without one.

        Raises OptionError for a sink with a group that was made after others had written, and for
        several sinks with one group: the group's offsets would be ahead of an output.
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
"""A local property of the thread that runs a query."""


class ForeachBatchSink:
    """One sink of a query: the function that `foreach_batch` returns."""

    def __init__(
        self,
        transform: Callable[[DataFrame], DataFrame] | None,
        name: str,
        checkpoint: str,
        options: dict[str, str],
    ) -> None:
        """Raises OptionError for a checkpoint's location that cannot be read."""
        self._transform = transform
        self._name = name
        self._options = options
        self._where = read_location("checkpointLocation", checkpoint).normal
        lower = {key.lower(): value for key, value in options.items()}
        self._group_id = lower.get("kafka.group.id") or lower.get("group.id")
        process_local(_Runs).add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is a sink of the process that it comes to, as in Spark Connect."""
        vars(self).update(state)
        process_local(_Runs).add(self)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the batch. Raises OptionError, and what the commit raises."""
        rows = batch if self._transform is None else self._transform(batch)
        runs = process_local(_Runs)
        run = runs.run_of(self._where, _activated(rows.sparkSession))
        owner = runs.owner(self, run)
        run.begin(self._name, batch_id)
        try:
            writer = rows.write.format("txnlog").mode("append").options(**self._options)
            if owner is not None:
                writer = writer.option("sinkGroup", f"{owner.name}:{owner.group_id}")
            writer.option("txnVersion", str(batch_id)).option("sinkRun", run.run_id).save()
        except BaseException:
            run.failed(self._name)
            raise

    @property
    def name(self) -> str:
        """The sink's name, "" without one."""
        return self._name

    @property
    def group_id(self) -> str | None:
        """The group that the sink commits the query's offsets for."""
        return self._group_id

    @property
    def where(self) -> str:
        """The place of the query's checkpoint."""
        return self._where


def foreach_batch(
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    name: str = "",
    **options: object,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each micro-batch exactly once.

    `transform` makes the rows to write (columns as for `format("txnlog")`) of the micro-batch's;
    without it they are written as they are. `options` are those of `writeStream.format("txnlog")`,
    `checkpointLocation` among them, equal to the query's. `name` tells several sinks of one query
    apart; it is kept in the checkpoint, and must not be changed. Raises OptionError; so does the
    function when a batch is written a second time under one name.
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
    """The id of the session of the query's run: Spark makes one for each run.

    Classic Spark finds a Python data source by the active session, which is a thread's own, and
    threads that the function has started have none.
    """
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return str(session.session_id)  # type: ignore[attr-defined]  # Spark Connect's
    sessions: Any = session.sparkContext._jvm
    sessions = sessions.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    if active.isDefined() and session.sparkContext.getLocalProperty(QUERY_ID_PROPERTY):
        return str(active.get().sessionUUID())  # the query's own thread; rows may be of any session
    sessions.setActiveSession(java)
    return str(java.sessionUUID())
