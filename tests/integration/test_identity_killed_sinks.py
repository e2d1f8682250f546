"""A driver that is killed between the two sinks of one query, and while it writes the second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.librdkafka import create_topic
from support.spark.spark_copy import KILLED, CopyQuery

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = (
    "commit_log:before:kill-driver@1",  # behind the first sink
    "init_producer_id:after:kill-driver@1",  # the first is skipped: this is the second's
    "end_txn:after:kill-driver@1",  # both are written, and Spark has not noted it
)


def test_a_driver_killed_between_two_sinks_and_in_the_second_writes_both_once(
    broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    query = CopyQuery(tmp_path, broker.bootstrap_servers, unique("sinks"))
    query.program = "two_sinks_job.py"
    second = create_topic(query.bootstrap, unique("second"), 1)
    query.job_arguments = [f"second={second}"]
    query.feed(3 * query.batch_size)
    for failpoint in KILLS:
        killed = query.run(failpoint)
        assert killed.code == KILLED
        assert killed.fired == (failpoint,), killed.stderr[-3000:]
    ended = query.run()
    assert ended.code == 0, ended.stderr[-3000:]
    query.check_exactly_once()
    for topic in (query.target, second):
        query.target = topic
        assert set(query.output()) == query.input()
        assert set(query.output("read_uncommitted").values()) == {1}, "a written batch came again"
