"""Kafka's own test of compaction, `LogCompactionTester`, on both brokers.

The tool writes keys many times over, deletes some, and lets the cleaner run. Then it reads
everything back, and compares the last value of each key in both of its files.
"""

from __future__ import annotations

import re

import pytest
from support.kafka.java_tools import COMPACTION_TESTER

# The tool reads until nothing has come for 20 s.
pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

CLEANS_AT_ONCE = {
    "log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


def test_the_last_value_of_each_key_survives_compaction(java, new_broker):
    broker = new_broker(CLEANS_AT_ONCE)
    done = java.ok(
        COMPACTION_TESTER, "--bootstrap-server", broker.bootstrap_servers, "--messages", 150_000,
        "--duplicates", 10, "--percent-deletes", 20, "--sleep", 1, "--compression-type", "none",
    )  # fmt: skip
    found = re.search(r"(\d+) rows of data produced, (\d+) rows of data consumed", done.out)
    assert found is not None, done
    produced, consumed = map(int, found.groups())
    assert produced == 150_000
    assert consumed < produced
    assert re.search(r"Validated [1-9]\d* values, 0 mismatches\.", done.out)
