"""Every failpoint, before and after, killed and killed while sending: generated from the steps.

Six of them run in `make test` (`test_exactly_once_driver_kills.py`); this is all of them, once on
each broker and once with the transactions of Kafka 3 (transaction version 1), and the rows of the
fault matrix, which also die inside a recovery. Then all of them for a query with windows and
timers, and for one with two sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of
from support.spark import windows_job
from support.spark.driver_rows import DRIVER_ROWS, KILL, ON_SEND, Row, aimed_at, play
from support.spark.spark_copy import KILLED, CopyQuery

from txnlog_testing.failpoints import STEPS

pytestmark = pytest.mark.chaos

UNREACHED = {("produce.first", "before"), ("produce.middle", "before"), ("produce.last", "before")}
SENDING = {"init_producer_id", "judge", "produce", "txn_offset_commit", "end_txn"}
"""Steps whose "before" is followed by a request on both transaction versions."""


def matrix() -> tuple[Row, ...]:
    """Return a row for each place and way to die, with the traces that the attempt leaves."""
    rows = [
        Row(f"{KILL} {place}", f"{place}:{KILL}")
        for place in ("offset_log:before", "offset_log:after")
    ]
    for step in ("collect", *STEPS, "commit_log", "source_commit"):
        for when in ("before", "after"):
            if (step, when) in UNREACHED or (
                step in ("commit_log", "source_commit") and when == "after"
            ):
                continue
            actions = (KILL, ON_SEND) if when == "before" and step in SENDING else (KILL,)
            rows += [expected(step, when, action) for action in actions]
    return tuple(rows)


def expected(step: str, when: str, action: str) -> Row:
    """A row with the copies and the decision that its place in the protocol allows."""
    name, failpoint = f"{action} {step}:{when}", f"{step}:{when}:{action}"
    if step == "end_txn" and when == "before" and action == ON_SEND:
        return Row(name, failpoint, 1, 1, None)
    if (step, when) == ("end_txn", "after") or step == "commit_log":
        return Row(name, failpoint, 1, 1, True)
    if step in ("produce.last", "end_txn") or (step, when) == ("produce", "after"):
        return Row(name, failpoint, 1, 1)
    is_untouched = when == "before" and action == KILL
    if step.startswith(("produce", "txn_offset_commit")) and not is_untouched:
        return Row(name, failpoint, 0, 1)
    return Row(name, failpoint, pending=step == "source_commit")


def test_every_step_killed(broker, tmp_path, unique):
    play(CopyQuery(tmp_path, broker.bootstrap_servers, unique("matrix")), matrix())


def test_every_row_of_the_fault_matrix_killed(broker, tmp_path, unique):
    play(CopyQuery(tmp_path, broker.bootstrap_servers, unique("rows")), DRIVER_ROWS)


def test_every_step_killed_with_transaction_version_1(new_broker, tmp_path, unique):
    broker = new_broker(transaction_version=1)
    play(CopyQuery(tmp_path, broker.bootstrap_servers, unique("matrix")), matrix())


def failpoints() -> list[str]:
    """Return the failpoints of the matrix that a run with new input reaches."""
    return [row.failpoint for row in matrix() if not row.pending]


def killed_at_each(query: CopyQuery, feed: Callable[[], None]) -> None:
    """Kill a query in each run at another failpoint, then let it end."""
    for failpoint in failpoints():
        feed()
        aimed = aimed_at(failpoint, query.next_batch())
        run = query.run(aimed)
        assert run.code == KILLED, (failpoint, run.last_error)
        assert run.fired == (aimed,)
    ended = query.run()
    assert ended.code == 0, ended.stderr[-3000:]


@pytest.mark.timeout(3600)
def test_every_step_killed_of_a_query_with_windows_and_timers(
    broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    query = CopyQuery(tmp_path, broker.bootstrap_servers, unique("windows"))
    query.source = create_topic(query.bootstrap, unique("numbers"), 1)
    query.program = "windows_job.py"
    query.read_options["maxOffsetsPerTrigger"] = "20"
    fed = 0

    def feed() -> None:
        nonlocal fed
        produce_values(query.bootstrap, query.source, map(str, range(fed, fed + 60)))
        fed += 60

    killed_at_each(query, feed)
    values = values_of(read_topic(query.bootstrap, query.target))
    assert values == windows_job.expected(fed)


@pytest.mark.timeout(3600)
def test_every_step_killed_of_a_query_with_two_sinks(
    broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    query = CopyQuery(tmp_path, broker.bootstrap_servers, unique("sinks"))
    query.program = "two_sinks_job.py"
    second = create_topic(query.bootstrap, unique("second"), 1)
    query.job_arguments = [f"second={second}"]
    killed_at_each(query, lambda: query.feed(3 * query.batch_size))
    query.check_exactly_once()
    query.target = second
    query.check_exactly_once()
