"""Hostile clients for a while: no crash, no leak, no change, and transactions go on meanwhile.

`make chaos` runs it for ten minutes; TXNLOG_HOSTILE_SECONDS says how long, TXNLOG_CHAOS_SEED which.
"""

from __future__ import annotations

import os

import pytest
from support.brokers.sim_broker import SimBroker
from support.raw.hostile_run import CONFIG, run_hostile

SEED = int(os.environ.get("TXNLOG_CHAOS_SEED", "20261121"))
SECONDS = float(os.environ.get("TXNLOG_HOSTILE_SECONDS", "600"))
GROWTH_BYTES_MAX = 64 * 1024 * 1024


@pytest.mark.parametrize("seconds", [4.0, pytest.param(SECONDS, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("seed", [SEED])
def test_hostile_clients_neither_stop_nor_swell_nor_change_the_broker(tmp_path, seed, seconds):
    with SimBroker(tmp_path, CONFIG) as broker:
        figures = run_hostile(broker, broker.cluster.pid(0), seconds, seed)
        print(f"seed {seed}: {figures}")
    assert figures.frames > 50 * seconds
    assert figures.transactions > seconds / 2
    assert figures.growth_bytes < GROWTH_BYTES_MAX
