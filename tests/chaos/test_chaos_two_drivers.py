"""A second driver beside a living one, again and again, with kills of all kinds, then the proof.

The seed is in the test's name; TXNLOG_CHAOS_SEED chooses another one, TXNLOG_CHAOS_ROUNDS how long.
"""

from __future__ import annotations

import os
import random
import signal

import pytest
from support.brokers.probe import pause
from support.spark.audit import check_audit
from support.spark.spark_copy import CopyQuery, RunningJob, descendants

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get("TXNLOG_CHAOS_SEED", "20261122"))
ROUNDS = int(os.environ.get("TXNLOG_CHAOS_ROUNDS", "12"))
LIFE_SECONDS = (6.0, 14.0)


def stop_for_a_while(job: RunningJob, rng: random.Random) -> None:
    """SIGSTOP the driver's whole tree, and wake it up later."""
    pids = descendants(job.process.pid)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
    pause(rng.uniform(1.0, 8.0))
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


@pytest.mark.parametrize("seed", [SEED])
def test_two_drivers_on_one_checkpoint_lose_and_double_nothing(broker, tmp_path, unique, seed):
    rng = random.Random(seed)
    query = CopyQuery(tmp_path, broker.bootstrap_servers, unique("double"), batch_size=10)
    query.write_options["kafka.transaction.timeout.ms"] = "10000"
    for _ in range(ROUNDS):
        query.feed(rng.randrange(100, 400))
        first = query.start()
        second = None
        try:
            pause(rng.uniform(*LIFE_SECONDS))
            second = query.start()
            fault = rng.choice(["none", "stop", "broker", "kill first", "kill second"])
            pause(rng.uniform(*LIFE_SECONDS))
            if fault == "stop":
                stop_for_a_while(first, rng)
            elif fault == "broker":
                broker.restart()
            elif fault == "kill first":
                first.kill()
            elif fault == "kill second":
                second.kill()
            pause(rng.uniform(0.0, 4.0))
        finally:
            first.kill()
            if second is not None:
                second.kill()
    run = query.run()
    assert run.code == 0, run.stderr[-3000:]
    query.check_exactly_once()
    check_audit(query)
