"""SIGKILL of the driver and of the broker at random moments, then the proof.

The seed is in the test's name; TXNLOG_CHAOS_SEED chooses another one, TXNLOG_CHAOS_ROUNDS how long.
"""

from __future__ import annotations

import os
import random

import pytest
from support.brokers.probe import pause
from support.spark.audit import check_audit
from support.spark.spark_copy import CopyQuery

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get("TXNLOG_CHAOS_SEED", "20261121"))
ROUNDS = int(os.environ.get("TXNLOG_CHAOS_ROUNDS", "20"))
START_SECONDS = (3.0, 12.0)
"""When to strike: from while Spark starts to some batches into the run."""


@pytest.mark.parametrize("seed", [SEED])
def test_random_kills_of_driver_and_broker(broker, tmp_path, unique, seed):
    rng = random.Random(seed)
    query = CopyQuery(tmp_path, broker.bootstrap_servers, unique("random"))
    for _ in range(ROUNDS):
        query.feed(rng.randrange(1, 400))
        query.remove_unfinished_entry()
        job = query.start()
        try:
            pause(rng.uniform(*START_SECONDS))
            if rng.random() < 0.5:
                broker.restart()
                pause(rng.uniform(0, 5))
        finally:
            job.kill()
    query.remove_unfinished_entry()
    run = query.run()
    assert run.code == 0, run.stderr[-3000:]
    query.check_exactly_once()
    check_audit(query)
