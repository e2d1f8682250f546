"""Losses that a simulated cluster allows, by topic; the cluster must report each loss."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from support.core.replica_disks import DIRECTORY, PATH, Replicas, batch, changed, read

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import TraceEvent, Truncate
from broker_sim.core.membership.cluster_metadata import UNCLEAN_ELECTION
from simulation.checkers.losses import Losses
from simulation.checkers.metadata_oracle import MetadataListener
from simulation.cli import run_seed
from simulation.load.unflushed_topic import DIRECTORY as UNSAFE_DIRECTORY
from simulation.load.unflushed_topic import Transaction, check_transaction
from simulation.scenario_loading import THREE_BROKERS, load_scenario
from simulation.violation import Violation
from txnlog_kafka.wire.records import parse_header

LED_BY_1 = PartitionRegistration((0, 1), (1,), 1, 3, 6)


def losing():
    """Broker 0 has two batches that are committed, broker 1 the first; and what may be lost."""
    replicas, counts = Replicas(prefix="broker-", unsafe={DIRECTORY}), Counter()
    replicas.state.isr = ()
    replicas.state.leader = "broker-0"
    replicas.append("broker-0", batch(0), batch(1))
    replicas.append("broker-1", batch(0))
    replicas.logs.on_high_watermark("broker-0", DIRECTORY, 2)
    return replicas, Losses(replicas.logs, lambda: 7, lambda what: counts.update([what])), counts


def crc(data):
    return parse_header(data).crc


@pytest.mark.invariant(10)
def test_an_unclean_election_loses_what_the_new_leader_has_not_and_nothing_else():
    replicas, _, _ = losing()
    with pytest.raises(Violation, match="invariant 10: what is committed was truncated"):
        replicas.do("broker-0", Truncate(PATH, len(batch(0))))
    replicas, losses, counts = losing()
    losses.on_election(DIRECTORY, LED_BY_1)
    assert counts["committed batches lost"] == 1
    replicas.do("broker-0", Truncate(PATH, len(batch(0))))
    with pytest.raises(Violation, match="invariant 10: what is committed was truncated"):
        replicas.do("broker-0", Truncate(PATH, 0))
    assert losses.explain(DIRECTORY, crc(batch(1)))
    assert not losses.explain("other-0", crc(batch(1)))
    assert not losses.explain(DIRECTORY, 12345), "nobody has appended it"
    replicas.append("broker-1", batch(1, b"later", leader_epoch=3))
    assert not losses.explain(DIRECTORY, crc(batch(1, b"later", leader_epoch=3)))


def test_a_leader_that_does_not_know_of_the_election_commits_nothing():
    replicas, losses, _ = losing()
    losses.on_election(DIRECTORY, LED_BY_1)
    replicas.state.leader = "broker-1"
    replicas.logs.on_high_watermark("broker-0", DIRECTORY, 2)
    assert len(replicas.logs.committed_in(DIRECTORY)) == 1


def test_a_loss_of_all_power_loses_what_somebody_in_sync_had_not_flushed():
    _, losses, counts = losing()
    assert losses.holders(DIRECTORY) == ["broker-0"]
    held = PartitionRegistration((0, 1), (0,), 0, 2, 6)
    losses.on_blackout(DIRECTORY, held, ["broker-0"])
    assert counts["committed batches lost"] == 0, "who is in sync has all"
    losses.on_blackout(DIRECTORY, held.changed(isr=(0, 1)), ["broker-0"])
    assert counts["committed batches lost"] == 1


@pytest.mark.invariant(10)
@pytest.mark.parametrize("told", [[], [2], [3, 4]])
def test_an_election_that_is_not_reported_and_a_report_of_none_are_noticed(told):
    def report(epoch):
        fields = {"topic": "t", "partition": 0, "leader_epoch": epoch}
        return TraceEvent(UNCLEAN_ELECTION, fields)

    _, losses, _ = losing()
    losses.check_reported()
    losses.on_election(DIRECTORY, LED_BY_1)
    losses.on_traces(map(report, told))
    with pytest.raises(Violation, match="invariant 10: unclean elections"):
        losses.check_reported()


class Elections(MetadataListener):
    """Unclean elections of a history: the directory, and the new leader."""

    def __init__(self):
        self.seen = []

    def on_unclean(self, directory, after):
        self.seen.append((directory, after.leader))


@pytest.mark.invariant(9, 10)
@pytest.mark.parametrize(("unsafe", "unclean"), [(False, True), (True, False), (True, True)])
def test_a_leader_out_of_sync_is_noticed_but_where_it_is_allowed_and_said(unsafe, unclean):
    listener = Elections()
    allowed = {DIRECTORY} if unsafe else set()
    oracle, history = read(changed(isr=(0,)), listener=listener, unsafe=allowed)
    record = changed(leader=1, isr=(1,), leader_epoch=4, partition_epoch=8)
    records = [record | ({"unclean": True} if unclean else {})]
    if unsafe and unclean:
        oracle.on_read("b0", records, len(history) + 1)
        assert listener.seen == [(DIRECTORY, 1)]
    else:
        with pytest.raises(Violation, match="invariant 9: a leader that was not in the ISR"):
            oracle.on_read("b0", records, len(history) + 1)


class Explains(SimpleNamespace):
    """Losses of these CRCs, and of all power at these times."""

    def explain(self, directory, found):
        assert directory == UNSAFE_DIRECTORY
        return found in self.crcs

    lost_power_within = Losses.lost_power_within


def ended(**fields):
    common = {"begun_us": 10, "acknowledged": {b"1:0": 100, b"1:1": 101}, "commit_asked_us": 20}
    return Transaction(1, 7, 0, **(common | {"is_committed": True} | fields))


BOTH = {b"1:0", b"1:1"}


@pytest.mark.invariant(20, 22)
@pytest.mark.parametrize(
    ("number", "made", "seen", "in_safe", "blackouts"),
    [
        (22, ended(commit_asked_us=None, is_committed=False), set(), True, []),
        (22, ended(commit_asked_us=None, is_committed=False), {b"1:0"}, False, []),
        (22, ended(), set(), False, []),
        (20, ended(is_committed=False), BOTH, False, []),
        (20, ended(), {b"1:1"}, True, []),
        (20, ended(is_committed=False), set(), True, []),
        (20, ended(), BOTH, True, [15]),
    ],
)
def test_a_transaction_that_is_half_there_without_a_loss_is_noticed(
    number, made, seen, in_safe, blackouts
):
    losses = Explains(crcs={101}, blackouts_us=blackouts)
    with pytest.raises(Violation, match=f"invariant {number}:"):
        check_transaction(made, seen, in_safe, losses)


@pytest.mark.parametrize(
    ("made", "seen", "in_safe", "blackouts"),
    [
        (ended(), BOTH, True, [5, 25]),
        (ended(), {b"1:0"}, True, []),
        (ended(is_committed=False), set(), False, [15]),
        (ended(commit_asked_us=None, is_committed=False), set(), False, [15]),
        (Transaction(1), set(), False, [15]),
    ],
)
def test_what_is_lost_and_reported_and_what_is_aborted_is_fine(made, seen, in_safe, blackouts):
    losses = Explains(crcs={101}, blackouts_us=blackouts)
    check_transaction(made, seen, in_safe, losses)


@pytest.mark.invariant(10, 20, 43, 44)
@pytest.mark.parametrize(
    ("story", "happens"),
    [
        ("unclean_elections", {"leader that is alone in the ISR dies": 6}),
        (
            "all_lose_power",
            {"all machines lost power": 6, "transaction open when all machines lost power": 6},
        ),
    ],
)
def test_in_the_stories_of_losses_what_was_acknowledged_is_lost(story, happens):
    counts = Counter()
    for seed in range(6):
        counts.update(run_seed(seed, f"three_brokers_{story}").counts)
    assert all(counts[what] > often for what, often in happens.items()), counts
    assert counts["committed batches lost"] > 0


def test_some_drawn_clusters_have_an_unsafe_topic():
    drawn = [load_scenario(THREE_BROKERS, seed) for seed in range(300)]
    unsafe = [each.faults.cluster for each in drawn if each.load.unsafe_topic]
    assert 10 < len(unsafe) < 90
    assert any(each.blackout for each in unsafe)
    lonely = sum(each.lonely_leader for each in unsafe)
    assert 0 < lonely == sum(each.faults.cluster.lonely_leader for each in drawn)
