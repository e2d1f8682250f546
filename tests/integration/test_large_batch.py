"""Batches of 10 GB, and over 1,000 partitions: what is staged is never in memory as a whole."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.brokers.processes import die_with_parent
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import create_topic, each_record
from support.spark import large_write_job
from support.spark.spark_copy import REPOSITORY, SPARK_CONFIG, SPARK_SUBMIT, java_options

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

GIB = 2**30
VALUE_BYTES = 8_192
PYTHON_BYTES_MAX = 640 * 2**20
KINDS = {
    "server": "txnlog_spark.staging.server",
    "task": "-m pyspark.daemon pyspark.worker",
    "committer": "-m pyspark.daemon pyspark.sql.worker.commit_data_source_write",
}


@contextmanager
def largest() -> Iterator[dict[str, int]]:
    """The largest resident size of each kind of process, sampled while it runs."""
    found: dict[str, int] = {}
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.5):
            for process in psutil.process_iter(["cmdline", "memory_info"]):
                command = " ".join(process.info["cmdline"] or [])
                for kind, name in KINDS.items():
                    if name in command:
                        found[kind] = max(found.get(kind, 0), process.info["memory_info"].rss)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("size_gib", "partitions"), [(10, 12), (1, 1_000)])
def test_a_batch_far_larger_than_memory_goes_through_a_driver_of_two_gigabytes(
    tmp_path: Path, unique: Callable[[str], str], size_gib: int, partitions: int
) -> None:
    rows = size_gib * GIB // VALUE_BYTES
    with SimBroker(tmp_path / "broker") as broker:
        topic = create_topic(broker.bootstrap_servers, unique("large"), partitions)
        settings = SPARK_CONFIG | java_options() | {"spark.driver.memory": "2g"}
        command = [str(SPARK_SUBMIT), "--master", "local[2]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [large_write_job.__file__, broker.bootstrap_servers, topic]
        command += [str(rows), str(VALUE_BYTES)]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (tmp_path / "job.log").open("w") as log:
            job = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=tmp_path,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
            )  # fmt: skip
            with largest() as sizes:
                code = job.wait()
        assert code == 0, (tmp_path / "job.log").read_text()[-3000:]
        seen: set[bytes] = set()
        for record in each_record(broker.bootstrap_servers, topic):
            assert record.key is not None
            assert record.key not in seen
            digest = hashlib.md5(record.key, usedforsecurity=False).hexdigest().encode()
            assert record.value == digest * (VALUE_BYTES // large_write_job.DIGEST_BYTES)
            seen.add(record.key)
        assert len(seen) == rows
    print({kind: f"{size >> 20} MiB" for kind, size in sizes.items()})
    assert sizes.keys() == KINDS.keys()
    assert max(sizes.values()) < PYTHON_BYTES_MAX
