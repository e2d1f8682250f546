"""A query of two batches for the explorer: its drivers, and what must be there in the end.

A driver does what Spark's engine does with a checkpoint: look at both logs, go on with the batch
that is planned and not in the commit log, else plan the next one, commit it, log that. The log
entries are the same whoever writes them; which run wrote a row is in the row.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from support.explorer.explored_actor import Actor, CreateFile, ListFiles, Program
from support.explorer.explored_broker import BrokerAutomaton
from support.explorer.explorer import Explored, Explorer
from support.models.transactions import Reference
from support.query.commit_plans import record_batch, staged

from simulation.hosts.checkpoint import ConcurrentQuery
from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.commit.progress import parse_progress
from txnlog_spark.commit.query import QueryBatch, commit_query_batch
from txnlog_spark.offsets import SourceNote, to_json_value, with_source_note

PLACE = "/checkpoint"
QUERY = "query-1"
GROUP = "g"
OPTIONS = CommitOptions(group_id=GROUP, topic="out")
PROGRESS_GROUP = OPTIONS.progress_group_of(QUERY)
ENDS = (2, 3)
"""The source's offset after each batch; one row an offset."""
METADATA = {f"{PLACE}/metadata": b'{"id":"%s"}' % QUERY.encode()}


def entry(batch_id: int) -> bytes:
    """Return the entry that Spark logs for a batch."""
    ends = to_json_value({TopicPartition("in", 0): ENDS[batch_id]})
    return f"v1\n{{}}\n{json.dumps(with_source_note(ends, SourceNote('c', GROUP)))}".encode()


STATE = {f"{PLACE}/state/0/0": b""}
"""A file of the state of a stateful query."""
CONSTANTS = METADATA | {f"{PLACE}/offsets/{n}": entry(n) for n in range(len(ENDS))}
"""Files that are read after they were written, and never changed."""


def driver(run_id: str, transactional_id: str | None = None) -> Program:
    """A query run, perhaps with a transactional id of its own."""

    def program(session: Session) -> Generator[Any, Any, None]:
        logged = yield ListFiles()
        planned = [n for n in range(len(ENDS)) if f"{PLACE}/offsets/{n}" in logged]
        batch_id = len(planned)
        is_planned = bool(planned) and f"{PLACE}/commits/{batch_id - 1}" not in logged
        batch_id -= is_planned
        while batch_id < len(ENDS):
            if not is_planned:
                yield from _create("offsets", batch_id, entry(batch_id))
            is_planned = False
            batch = _batch(batch_id, run_id, transactional_id)
            yield from commit_query_batch(session, batch)
            yield from _create("commits", batch_id, b"v1\n{}")
            batch_id += 1

    return program


def hanging_worker(run_id: str) -> Program:
    """A worker of a run that was given its first batch as another one was, and may be late."""

    def program(session: Session) -> Generator[Any, Any, None]:
        yield CreateFile(f"{PLACE}/offsets/0", entry(0))
        yield from commit_query_batch(session, _batch(0, run_id))

    return program


def two_workers(run_id: str) -> Program:
    """A query run whose batches are committed by two workers in turn, on one client each."""

    def program(session: Session) -> Generator[Any, Any, None]:
        sessions = session, Session(session.monotonic_ms)
        for batch_id in range(len(ENDS)):
            yield CreateFile(f"{PLACE}/offsets/{batch_id}", entry(batch_id))
            yield from commit_query_batch(sessions[batch_id % 2], _batch(batch_id, run_id))
            yield CreateFile(f"{PLACE}/commits/{batch_id}", b"v1\n{}")

    return program


def _create(log: str, batch_id: int, data: bytes) -> Generator[Any, Any, None]:
    path = f"{PLACE}/{log}/{batch_id}"
    if not (yield CreateFile(path, data)):
        raise ConcurrentQuery(f"{path} exists")


def _batch(batch_id: int, run_id: str, transactional_id: str | None = None) -> QueryBatch:
    begin = ENDS[batch_id - 1] if batch_id else 0
    rows = record_batch(*(f"{n}:{run_id}" for n in range(begin, ENDS[batch_id])))
    return QueryBatch(
        checkpoint=PLACE,
        location=PLACE,
        batch_id=batch_id,
        options=replace(OPTIONS, transactional_id=transactional_id),
        staged=staged("out", 0, rows),
        query_id=QUERY,
        run_id=run_id,
    )


def audit(state: Reference) -> None:
    """Check that each row is there once and in order, the group behind the last row, and all
    progress in one place."""
    rows = [int(value.split(b":")[0]) for value in state.visible(("out", 0))]
    assert rows == list(range(ENDS[-1])), f"read_committed gives the rows {rows}"
    group = {place: offset for place, (offset, _) in state.committed(GROUP).items()}
    assert group == {("in", 0): ENDS[-1]}, f"the group is at {group}"
    found = state.committed(PROGRESS_GROUP).values()
    progress = [parse_progress(CommittedOffset(*each)) for each in found]
    assert [p and p.next_batch_id for p in progress] == [len(ENDS)], f"progress is {progress}"


def explore(
    faults: frozenset[str],
    *,
    programs: Sequence[Program] = (driver("run-1"), driver("run-2")),
    may_fail: int = 1,
    transaction_version: int = 2,
    is_stateful: bool = False,
    switches_max: int = 1,
) -> Explored:
    """Explore all interleavings of these programs with so many switches, and a fault in one of the
    first `may_fail`. Requests that one program sends at once are carried out in any order if it is
    alone.

    Raises Violated.
    """
    broker = BrokerAutomaton(transaction_version, (GROUP, PROGRESS_GROUP))
    in_order = len(programs) > 1
    constants = CONSTANTS | STATE if is_stateful else CONSTANTS
    last_programs = [driver(f"last-{n}") for n in range(1, 3)]
    drivers, last = (
        [
            Actor(f"{name} {n}", program, broker.answer, constants, in_order=in_order)
            for n, program in enumerate(each, 1)
        ]
        for name, each in (("driver", programs), ("last", last_programs))
    )
    explorer = Explorer(
        broker,
        dict(METADATA),
        drivers,
        last,
        audit,
        faults=faults,
        may_fail=may_fail,
        switches_max=switches_max,
    )
    return explorer.run()
