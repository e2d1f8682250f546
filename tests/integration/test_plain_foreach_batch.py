"""A plain write in foreachBatch is at-least-once, and says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from support.clients.librdkafka import read_topic
from support.spark.spark_copy import CopyQuery

BATCHES = 3


def test_a_plain_write_in_foreach_batch_is_told_of_foreach_batch_once(
    shared_brokers: Callable, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    bootstrap = shared_brokers("broker_sim").bootstrap_servers
    query = CopyQuery(tmp_path, bootstrap, unique("foreach"), partitions=1)
    query.program = "foreach_job.py"
    query.feed(BATCHES * query.batch_size)
    run = query.run()
    assert run.code == 0, run.stderr[-3000:]
    assert len(read_topic(bootstrap, query.target)) == 3 * query.produced + 1
    (query_id,) = re.findall(r"^plain query (\S+)", run.stderr, re.MULTILINE)
    (warning,) = [line for line in run.stderr.splitlines() if "at-least-once" in line]
    assert query_id in warning
    assert "txnlog_spark.foreach_batch" in warning
