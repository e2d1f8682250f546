"""Driver of jobs under test, a process of its own: `python -m ... driver_main CONFIG.json`.

It makes a SparkSession, then carries out one command after another: a line of JSON on standard
input, a line of JSON back on what standard output was. All that the job prints goes to the log.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from pyspark.sql import SparkSession

from txnlog_testing.processes import signal_all
from txnlog_testing.prove.job_kafka import JobKafka

NEVER_ENDS = "ContinuousTrigger"


def main() -> None:
    """Serve until the process that gives commands is gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    builder: Any = SparkSession.builder
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _answer(answers, {})
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    while True:
        command = json.loads(commands.get())
        do: Callable[..., None] = {"run": run_job, "read": read_output}[command.pop("do")]
        try:
            do(spark.newSession(), **command)
        except Exception as error:  # noqa: BLE001 whatever a job raises is its outcome
            traceback.print_exc()
            _answer(answers, {"error": short_error(error)})
        else:
            _answer(answers, {})


def _read_commands(commands: queue.SimpleQueue[str]) -> None:
    """Pass commands on; when the process that gave them is gone, end this one, whatever it does."""
    for line in sys.stdin:
        commands.put(line)
    signal_all(os.getpid(), signal.SIGKILL)


def _answer(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def run_job(spark: SparkSession, job: str, kafka: dict[str, str], checkpoint: str) -> None:
    """Start the job's queries, let them read all that is there, and stop them."""
    function = pickle.loads(Path(job).read_bytes())
    started = function(spark, JobKafka(**kafka), checkpoint)
    queries = list(started) if isinstance(started, Iterable) else [started]
    if not queries or not all(hasattr(query, "processAllAvailable") for query in queries):
        raise TypeError(
            f"{function.__qualname__} returned {started!r}: it must return the StreamingQuery that "
            "it started, or a list of them"
        )
    try:
        for query in queries:
            _drain(query)
    finally:
        for query in queries:
            query.stop()


def _drain(query: Any) -> None:
    """Return when the query has read what is there. Raises its error."""
    trigger = query._jsq.streamingQuery().trigger().toString()
    if trigger.startswith(NEVER_ENDS):
        raise TypeError(f"a query with {trigger} cannot be proved: it has no micro-batches")
    if trigger.startswith(("AvailableNow", "OneTime")):
        query.awaitTermination()
    else:
        query.processAllAvailable()


def read_output(spark: SparkSession, reader: str, kafka: dict[str, str], into: str) -> None:
    """Write the rows that the pickled `reader(spark, kafka)` returns to the file `into`."""
    function: Callable[..., Any] = pickle.loads(Path(reader).read_bytes())
    rows = function(spark, JobKafka(**kafka))
    if hasattr(rows, "collect"):
        rows = rows.collect()
    plain = [row.asDict(recursive=True) if hasattr(row, "asDict") else row for row in rows]
    Path(into).write_bytes(pickle.dumps(plain))


_STREAM_FAILED = re.compile(
    r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", re.DOTALL
)
_NAMED = re.compile(
    r"^(?:: |Caused by: )?[\w.]*(?:Error|Exception|Fenced|Unknown)\b.*", re.MULTILINE
)


def short_error(error: BaseException) -> str:
    """Return the line of an error that a person needs: one of ours, or the last that names one."""
    text = _STREAM_FAILED.sub("", str(error).strip())
    ours = [line.strip() for line in text.splitlines() if "[TXNLOG_" in line]
    named = ours or _NAMED.findall(text)
    chosen = named[-1] if named else f"{type(error).__name__}: {text.partition(chr(10))[0]}"
    return chosen if len(chosen) < 400 else chosen[:397] + "..."


if __name__ == "__main__":
    main()
