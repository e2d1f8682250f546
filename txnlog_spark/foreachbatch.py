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

Several Kafka sinks of one query are several transactions, one after the other: give each a `name`
of its own. Each is exactly-once; a reader may see the first without the second for a moment. Only
the one that is called last may have `kafka.group.id`: the group must not be ahead of any output.

In Spark Connect the function is pickled and runs beside the server, in a process of its own for
each run of the query. The write is then a command of a client like any other: its tasks do not
know the query, the run and the batch, and the name of the run is made up here.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from txnlog_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAME = re.compile(r"[A-Za-z0-9_-]*")
_OURS = ("txnVersion", "txnAppId", "sinkName", "sinkRun", "sourceOffsets")


def foreach_batch(
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    name: str = "",
    **options: object,
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch` that writes each micro-batch exactly once.

    `transform` makes the rows to write (columns as for `format("txnlog")`) of the micro-batch's;
    without it they are written as they are. `options` are those of `writeStream.format("txnlog")`,
    `checkpointLocation` among them, equal to the query's. `name` tells several sinks of one query
    apart; it is kept in the checkpoint, and must not be changed. Raises OptionError.
    """
    given = {key: str(value) for key, value in options.items() if value is not None}
    lower = {key.lower() for key in given}
    if "checkpointlocation" not in lower:
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
    run: list[str] = []  # empty where the function is pickled: one client may start many runs

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch if transform is None else transform(batch)
        if not run:
            run.append(uuid.uuid4().hex)
        writer = rows.write.format("txnlog").mode("append").options(**given)
        writer.option("txnVersion", str(batch_id)).option("sinkRun", run[0]).save()

    return write
