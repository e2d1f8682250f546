"""Changes that must not change a result: a run's committed output with and without them (50).

A run without faults is the measure. Beside it the same query runs while logs are compacted, while
a broker or a driver ends and begins again, while a broker hands over all that it leads and leads
again, or while replicas and leaders are moved; and with other batches. The output of a run is the
committed records that a reader finds at its end, without the names of their producers.
"""

from collections import defaultdict

import pytest

from simulation import world as world_
from simulation.scenario import BrokerSettings, Fault, QuerySettings, Scenario
from simulation.world import World

SEED = 5
CALM = Scenario(
    name="metamorphic", chaos_ms=20_000, brokers=BrokerSettings(count=3),
    query=QuerySettings(
        batches=10, rows_per_batch=12, source_partitions=2, output_partitions=2
    ),
)  # fmt: skip
ALONE = CALM.changed({"brokers.count": 1})

RESTART = {"planned": (Fault(on="prepare-commit", occurrence=2),)}
DRIVER_RESTARTED = {
    "planned": (Fault(on="step", step="txn_offset_commit", when="before", batch_id=1),)
}
SPLIT = {"query.batches": 20, "query.rows_per_batch": 6}


def finals_of(scenario, monkeypatch):
    """Run the scenario; return the audits before and after a restart of all, and the counts."""
    finals = []

    def check(deployment, observations, final):
        finals.append(final)
        check_final(deployment, observations, final)

    check_final = world_.check_final
    with monkeypatch.context() as patched:
        patched.setattr(world_, "check_final", check)
        verdict = World(SEED, scenario).run()
    assert verdict.failure is None, verdict.failure
    assert len(finals) == 2
    return finals, verdict.counts


def rows_of(final):
    """Return the rows of each partition in their order: the key, and the place in the source."""
    return {
        partition: [(record.key, record.value.split(b":")[:2]) for record in records]
        for partition, records in final.committed.items()
    }


def rows_by_key(final):
    """Return the places of each key's rows, in order; other batches may change the rest of the
    order."""
    found = defaultdict(list)
    for partition, rows in rows_of(final).items():
        for key, place in rows:
            found[partition, key].append(place)
    return dict(found)


@pytest.fixture(scope="module")
def measures():
    """The output of the run that nothing happens to, by the number of brokers."""
    patch = pytest.MonkeyPatch()
    return {made.brokers.count: finals_of(made, patch)[0] for made in (CALM, ALONE)}


def test_a_restart_of_all_and_the_number_of_brokers_change_nothing(measures):
    cluster, alone = measures[3], measures[1]
    assert rows_of(cluster[0]) == rows_of(cluster[1])
    assert rows_of(alone[0]) == rows_of(alone[1])
    assert rows_by_key(cluster[0]) == rows_by_key(alone[0])
    assert sum(map(len, rows_of(alone[0]).values())) == 2 * (10 * 12 // 2 + 1)


@pytest.mark.invariant(50)
@pytest.mark.parametrize(
    ("scenario", "changed", "happened"),
    [
        (CALM, {"brokers.compaction": True}, "segments compacted"),
        (ALONE, {"brokers.compaction": True}, "segments compacted"),
        (CALM, RESTART, "kill"),
        (ALONE, RESTART, "kill"),
        (CALM, {"faults.cluster.clean_stop": 0.3}, "clean stop"),
        (CALM, {"load.administrator": True}, "reassignment"),
    ],
)
def test_what_happens_to_brokers_changes_no_row_and_no_order(
    scenario, changed, happened, measures, monkeypatch
):
    finals, counts = finals_of(scenario.changed(changed), monkeypatch)
    assert counts[happened] > 0, counts
    for final in finals:
        assert rows_of(final) == rows_of(measures[scenario.brokers.count][0])
        assert final.groups == measures[scenario.brokers.count][0].groups


@pytest.mark.invariant(50)
@pytest.mark.parametrize("changed", [DRIVER_RESTARTED, SPLIT])
def test_a_restarted_driver_and_other_batches_change_no_row_and_no_order_of_a_key(
    changed, measures, monkeypatch
):
    finals, _ = finals_of(CALM.changed(changed), monkeypatch)
    for final in finals:
        assert rows_by_key(final) == rows_by_key(measures[3][0])
