"""Bugs planted in the product: the simulator catches each, by an invariant that the bug breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted import PLANTS
from planted.commit_plants import CONNECTOR_PLANTS_OF_CLUSTERS
from support.harness.planted_bugs import assert_caught

CAUGHT = {
    # In a broker that is alone, in the commit and in the source.
    "flush-skipped": ("random", 4, {1, 2, 3, 5, 16, 21, 22, 31, 35}),
    "answer-before-storage": ("random", 4, {1, 2, 3, 5, 16, 21, 22, 31, 35}),
    "lso-is-high-watermark": ("random", 1, {21, 26}),
    "progress-not-kept": ("random", 1, {35}),
    "commit-log-first": ("random", 3, {35, 37}),
    "sequences-not-checked": ("random", 1, {13, 14, 35}),
    "aborted-list-missing": ("random", 1, {21, 27}),
    "prepared-forgotten": ("random", 2, {43, 46}),
    "aborted-offsets-kept": ("random", 0, {31, 35, 37}),
    "torn-not-aborted": ("random", 65, {20, 35}),
    "fenced-is-success": ("random", 2, {40, 41}),
    "baseline-not-transactional": ("random", 0, {36}),
    "id-changed-without-fencing": ("random", 37, {31, 35, 39, 41}),
    "others-fenced-before-the-own": ("random", 37, {31, 35, 41}),
    "id-recorded-too-late": ("random", 17, {31, 35, 41}),
    "only-the-last-id-fenced": ("random", 37, {31, 35, 41}),
    "group-not-compared": ("random", 21, {31, 35}),
    "start-compared-before-fencing": ("random", 21, {31, 35}),
    "progress-on-a-second-partition": ("random", 0, {37}),
    "judged-by-an-unstable-read": ("random", 10, {35, 41}),
    "recorded-before-the-baseline": ("random", 4, {41}),
    "staged-bytes-not-compared": ("random", 18, {35}),
    "newer-run-not-noticed": ("driver_overtaken", 0, {78}),
    "ended-runs-forgotten": ("driver_overtaken", 0, {78}),
    "one-run-id-for-all": ("driver_overtaken", 1, {78}),
    "failed-produce-ignored": ("random", 5, {22, 35, 36, 37}),
    "output-not-compared": ("topic_changed", 0, {35}),
    "topic-not-compared": ("topic_changed", 0, {35, 41}),
    "copy-keeps-the-progress": ("checkpoint_copied", 1, {79}),
    "copy-with-one-id-not-refused": ("checkpoint_copied", 2, {79}),
    "ids-of-the-original-fenced": ("checkpoint_copied", 0, {79}),
    "moved-taken-for-a-copy": ("checkpoint_moved", 0, {35, 37, 40}),
    "one-folder-for-all-sinks": ("two_sinks", 0, {35, 37, 40, 41}),
    "start-not-kept": ("random", 2, {41}),
    "start-kept-with-rows": ("random", 2, {35}),
    "start-not-noted": ("losses", 0, {41}),
    "start-noted-late": ("random", 91, {31, 35}),
    "replayed-start-rewound": ("random", 2, {75}),
    "lost-batch-not-found": ("checkpoint_tail_lost", 0, {41, 51}),
    "state-not-asked-for": ("losses", 0, {35}),
    "plan-not-flushed": ("losses", 2, {41}),
    "gone-forward-anywhere": ("losses", 26, {35}),
    "purged-entry-taken-for-nothing": ("losses", 62, {31, 35}),
    # In transactions and in the log, of one broker.
    "epoch-not-checked": ("random", 0, {15}),
    "epoch-of-the-last-marker-only": ("random", 0, {15}),
    "end-answered-before-replication": ("three_brokers_end_in_isolation", 6, {22, 35, 40, 41}),
    "open-transactions-forgotten": ("random", 4, {28, 43}),
    "aborted-list-missing-inside-a-segment": ("random", 2, {21, 27}),
    "marker-dropped-at-a-former-leader": ("three_brokers_leader_restarts", 8, {25, 43}),
    "complete-before-the-last-marker": ("random", 0, {25}),
    "any-coordinator-epoch": ("three_brokers_late_markers", 5, {17}),
    "window-of-four-batches": ("three_brokers_five_in_flight", 65, {14}),
    "window-of-no-batch": ("three_brokers_five_in_flight", 0, {14}),
    "pending-offsets-ignored": ("three_brokers_leader_restarts", 1, {31, 32, 33, 40}),
    "offsets-materialised-later": ("driver_dies_before_end", 0, {31, 32, 35, 40, 41}),
    "id-expires-inside-a-transaction": ("random", 0, {28, 43}),
    "timeouts-from-the-wall-clock": ("clock_jumps", 37, {43}),
    "late-produce-joins-the-next": ("late_produce", 58, {22, 23, 24}),
    "recovered-without-crc": ("three_brokers_damaged", 0, {6, 7, 8, 10, 12}),
    "abort-marker-compacted-early": ("coordinators_are_compacted", 0, {50}),
    # In what the connector repeats.
    "no-abort-before-a-retry": ("random", 12, {18, 35}),
    "progress-in-a-second-transaction": ("random", 2, {35, 36, 37, 41}),
    "judged-before-initialising": ("random", 60, {35, 37, 41}),
    "sequences-reset-without-a-leader": ("random", 7, {13, 18}),
    "batches-built-again": ("random", 1, {18}),
    "both-attempts-taken": ("random", 7, {35}),
    # In replication, of one of three brokers.
    "high-watermark-of-one-that-left": ("three_brokers_late_requests", 8, {3, 7, 8, 10}),
    "high-watermark-with-few-in-sync": ("cluster", 1, {11}),
    "admitted-before-it-caught-up": ("cluster", 17, {7, 8}),
    "truncated-to-high-watermark": ("cluster", 2, {3, 7, 8, 10}),
    "isr-proposal-not-fenced": ("cluster", 1, {7, 44}),
    "isr-change-not-fenced": ("cluster", 114, {7}),
    "served-above-high-watermark": ("cluster", 6, {1, 4, 5}),
    "producers-forgotten": ("three_brokers_late_requests", 2, {13, 14}),
    "marker-to-an-old-leader": ("three_brokers_damaged", 15, {2, 6, 7, 8, 10, 19, 20, 25, 43, 44}),
    "loaded-to-high-watermark": ("cluster", 8, {28, 31, 32, 40, 41}),
    "unclean-election": ("cluster", 2, {9}),
    "controller-after-its-session": ("cluster", 1, {9}),
    "producer-ids-given-twice": ("cluster", 0, {16}),
    "acknowledged-under-min-isr": ("cluster", 1, {11}),
    "any-generation-commits": ("cluster", 12, {32, 33}),
    # In consumer groups (KIP-848), of one broker.
    "member-epochs-ignored-by-commits": ("three_brokers_consumer_readers", 0, {32, 33}),
    "member-epochs-ignored-by-transactions": ("three_brokers_consumer_copiers", 2, {20, 32, 33}),
    "partition-given-before-it-is-free": ("three_brokers_consumer_readers", 76, {20, 33}),
    "members-never-missed": ("three_brokers_consumer_readers", 9, {45}),
    "members-never-removed": ("three_brokers_consumer_readers", 0, {45}),
    "target-lacks-a-partition": ("three_brokers_consumer_readers", 0, {45}),
    "partition-0-given-to-all": ("three_brokers_consumer_readers", 0, {33, 74}),
    "assignments-not-replayed": ("three_brokers_consumer_readers", 0, {45}),
    "sessions-not-started-at-load": ("three_brokers_consumer_readers", 9, {45}),
}
"""Scenario that meets the bug, a seed that catches it, and the invariants that the bug breaks: 46,
that the query does not finish, only where it is what the bug does."""


@pytest.mark.weekly
@pytest.mark.invariant(5, 18, 35, 41, 46, 49, 51, 75, 78, 79)
@pytest.mark.parametrize(
    "plant", [name for name in PLANTS if name not in CONNECTOR_PLANTS_OF_CLUSTERS]
)
def test_a_planted_bug_is_caught_by_an_invariant(
    plant: str, record_property: Callable[[str, object], None]
) -> None:
    """Two bugs that need three brokers are in `test_sim_cluster_runs.py`."""
    scenario, seed, numbers = CAUGHT[plant]
    assert_caught(plant, scenario, seed, numbers, record_property)
