"""A streaming query on three brokers, and everything fails at random: one line a round.

In a round records are produced with acks=all and carried by the query all the time, while up to
three faults begin and end (`chaos_faults.py`). Then all is healed, and within a time the
replicas must be in sync and the query at the end of its input: what was acknowledged is there once,
and once in the output, and all replicas are equal, byte by byte.

TXNLOG_CHAOS_SEED chooses another run, TXNLOG_CHAOS_ROUNDS how long it is. The faults and their
times are those of the seed; what they meet is not.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from support.brokers.chaos_cluster import HEALED_SECONDS_MAX, ChaosCluster
from support.brokers.chaos_faults import Fault, Faults
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import pause, wait_until
from support.clients.librdkafka import COORDINATOR_MOVED, producer
from support.spark.audit import check_audit
from support.spark.spark_copy import CopyQuery, RunningJob

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(0)]

SEED = int(os.environ.get("TXNLOG_CHAOS_SEED", "20261123"))
ROUNDS = int(os.environ.get("TXNLOG_CHAOS_ROUNDS", "20"))
PACE_SECONDS = 0.03
"""Between two records."""
MOVED_SECONDS_MAX = 30.0


class Run:
    """The cluster, the query on it, and the rounds that it has lived through."""

    def __init__(self, cluster: ChaosCluster, folder: Path, name: str) -> None:
        self.cluster = cluster
        self.query = CopyQuery(folder, cluster.bootstrap_servers, name, batch_size=40)
        self.query.write_options["kafka.transaction.timeout.ms"] = "20000"
        self.query.job_arguments = ["trigger=0 seconds"]
        self.job = self.query.start()
        self.deaths: Counter[str] = Counter()

    def play(self, number: int, rng: random.Random) -> str:
        """Play a round of faults; return its line of the report."""
        began = time.monotonic()
        self.deaths.clear()
        faults = Faults(self.cluster, lambda: self.job, rng).draw()
        ends, self._unsent = threading.Event(), ""
        sender = threading.Thread(target=self._feed, args=(ends,))
        sender.start()
        try:
            self._strike(faults)
            self.cluster.heal()
        finally:
            ends.set()
            sender.join()
        healed = time.monotonic()
        assert not self._unsent, self._unsent
        self.cluster.wait_whole()
        wait_until(self._is_done, "the end of the input", timeout_s=HEALED_SECONDS_MAX)
        wait_until_marked(self.query.bootstrap)
        wait_until(self._was_exactly_once, "the group's coordinator", timeout_s=MOVED_SECONDS_MAX)
        check_audit(self.query)
        for topic in (self.query.source, self.query.target):
            for partition in range(self.query.partitions):
                self._check_replicas(topic, partition)
        died = ", ".join(f"{how} x{count}" for how, count in self.deaths.items())
        return (
            f"round {number}: {'; '.join(map(str, faults))} | "
            f"{'driver ended: ' + died + ' | ' if died else ''}"
            f"{self.query.produced} records, each once; healed {healed - began:.0f} s, "
            f"whole again and audited {time.monotonic() - healed:.0f} s later"
        )

    def _check_replicas(self, topic: str, partition: int) -> None:
        """Nothing is written any more: every replica has the same bytes."""

        def are_equal() -> bool:
            first, *others = self.cluster.logs_of(topic, partition)
            return bool(first) and all(each == first for each in others)

        wait_until(are_equal, f"equal replicas of {topic}-{partition}", timeout_s=MOVED_SECONDS_MAX)

    def _feed(self, ends: threading.Event) -> None:
        """Produce until the round ends, also while no broker answers.

        An acknowledged record is on all in-sync replicas, and the producer's sequences keep it from
        being there twice.

        The producer has one request in flight at a time. With several, a refused request lets
        librdkafka raise the producer's epoch for the requests after it. If the answer for another
        partition was lost, librdkafka then sends that record again under the new epoch, and no
        broker can recognise the repeated record.
        """
        query, failures = self.query, []
        made = producer(query.bootstrap, enable_idempotence=True, acks="all", max_in_flight=1)

        def report(error: object, _message: object) -> None:
            failures.extend([] if error is None else [error])

        while not ends.wait(PACE_SECONDS):
            value = f"{query.produced:06}".encode()
            made.produce(query.source, value, key=value, on_delivery=report)
            query.produced += 1
            made.poll(0)
        left = made.flush(HEALED_SECONDS_MAX)
        if failures or left:
            self._unsent = f"{left} records were not acknowledged, and {failures[:1]}"

    def _strike(self, faults: list[Fault]) -> None:
        events = [(each.begins, each.begin) for each in faults]
        events += [(each.ends, each.end) for each in faults]
        began = time.monotonic()
        for at, act in sorted(events, key=lambda event: event[0]):
            pause(max(0.0, began + at - time.monotonic()))
            act()
            self._keep_running()

    def _keep_running(self) -> None:
        """The driver is started again when it has ended, whatever ended it."""
        if self.job.process.poll() is not None:
            ended = self.job.wait()
            last = ended.last_error.partition(": ")[0].rpartition(".")[2]
            self.deaths[last or f"exit code {ended.code}"] += 1
            self.job = self.query.start()

    def _is_done(self) -> bool:
        self._keep_running()
        with _moves_allowed():
            return sum(self.query.group_offsets().values()) >= self.query.produced
        return False

    def _was_exactly_once(self) -> bool:
        with _moves_allowed():
            self.query.check_exactly_once()
            return True
        return False


@contextmanager
def _moves_allowed() -> Iterator[None]:
    """librdkafka hands out what a broker says that was the group's coordinator a moment ago."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() not in COORDINATOR_MOVED:
            raise


@pytest.mark.parametrize("seed", [SEED])
def test_nothing_that_fails_costs_or_doubles_a_record(tmp_path, unique, capsys, seed):
    rng = random.Random(seed)
    with ChaosCluster(tmp_path / "cluster") as cluster:
        run = Run(cluster, tmp_path / "query", unique("chaos"))
        try:
            for number in range(1, ROUNDS + 1):
                line = run.play(number, rng)
                with capsys.disabled():
                    print(line, file=sys.stderr, flush=True)
        finally:
            end(run.job)


def end(job: RunningJob) -> None:
    """SIGKILL, unless it has ended."""
    if job.process.poll() is None:
        job.kill()
