"""Losses of a checkpoint, a query with state, and the check of the query's output."""

import json
import random
from types import SimpleNamespace

import pytest
from support.harness.days import seeds_of_day

from simulation.checkers.held_rows import check_held
from simulation.cli import run_seed
from simulation.hosts.checkpoint import LOGS, STATE, Checkpoint, Files, names_in
from simulation.hosts.stateful import TIMEOUT_MS, StatefulQuery, StateMissing
from simulation.scenario_loading import draw_losses
from simulation.violation import Violation
from txnlog_kafka.operations.effects import FlushFile, ListFolder, WriteFile
from txnlog_kafka.wire.topic_partition import TopicPartition

BATCHES = 6
SEEDS = 200


def checkpoint_of(batches=BATCHES):
    made = Checkpoint("cp", "q", Files(), starts_committed=False)
    for number in range(batches):
        run_batch(made, number)
    return made


def run_batch(checkpoint, number):
    checkpoint.create("offsets", number, b"plan %d" % number)
    checkpoint.replace(STATE, number + 1, b"state %d" % number)
    checkpoint.perform(WriteFile("cp/txnlog/attempt.json", b"begun %d" % number))
    checkpoint.create("commits", number, b"done")


def numbers(checkpoint):
    return {log: checkpoint.batches(log) for log in LOGS}


def is_prefix(found, whole):
    return found == whole[: len(found)]


def test_a_folder_lists_its_files_or_its_folders():
    paths = ["cp/state/0/1", "cp/state/note", "cp/offsets/0"]
    assert names_in("cp/state", paths) == ("note",)
    assert names_in("cp/state", paths, folders=True) == ("0",)
    assert checkpoint_of().perform(ListFolder("cp/state", folders=True)) == ("0",)


def test_each_log_loses_any_number_of_its_newest_files_by_itself():
    lost = set()
    for seed in range(SEEDS):
        found, whole = checkpoint_of(), numbers(checkpoint_of())
        found.lose_logs(random.Random(seed))
        left = numbers(found)
        assert all(is_prefix(left[log], whole[log]) for log in LOGS)
        assert max(left["commits"], default=-1) <= max(left["offsets"], default=-1)
        lost.add(tuple(BATCHES - len(left[log]) for log in LOGS))
    for place in range(len(LOGS)):
        assert {each[place] for each in lost} == {*range(BATCHES + 1)}
    assert len(lost) > 50


def test_a_loss_of_power_takes_what_spark_wrote_and_the_sink_did_not_flush():
    left = []
    for seed in range(SEEDS):
        found = checkpoint_of(4)
        found.perform(FlushFile("cp/offsets/3"))
        run_batch(found, 4)
        run_batch(found, 5)
        found.lose_power(random.Random(seed), takes_logs=True)
        left.append(numbers(found))
        assert found.batches("offsets")[:4] == [0, 1, 2, 3], "an entry that was flushed is there"
        found.lose_power(random.Random(seed), takes_logs=True)
        assert numbers(found) == left[-1], "what is left was on the disk"
    assert {len(each["offsets"]) for each in left} == {4, 5, 6}
    assert {len(each["commits"]) for each in left} == {*range(7)}
    assert {len(each[STATE]) for each in left} == {*range(7)}


def test_a_loss_of_power_may_leave_all_that_spark_wrote():
    found = checkpoint_of()
    found.lose_power(random.Random(1))
    assert numbers(found) == numbers(checkpoint_of())


def contents(checkpoint):
    folders = ("offsets", "commits", STATE, "txnlog")
    return {
        folder: {
            name: checkpoint.entry(folder, name)
            for name in names_in(f"cp/{folder}", checkpoint._own())
        }
        for folder in folders
    }


def test_a_backup_is_the_folder_as_it_was_at_some_moment_or_at_several():
    moments = [contents(Checkpoint("cp", "q", Files(), starts_committed=False))]
    live = Checkpoint("cp", "q", Files(), starts_committed=False)
    change = live._change

    def noting(path, data):
        change(path, data)
        moments.append(contents(live))

    live._change = noting
    for number in range(BATCHES):
        run_batch(live, number)
    whole, torn = set(), 0
    for seed in range(SEEDS):
        found = checkpoint_of()
        found.restore_backup(random.Random(seed))
        assert found.is_rolled_back
        now = contents(found)
        for folder in ("offsets", STATE, "txnlog"):
            assert any(now[folder] == each[folder] for each in moments)
        if now in moments:
            whole.add(moments.index(now))
        else:
            torn += 1
    assert len(whole) > len(moments) / 2
    assert torn > SEEDS / 10


def test_a_copy_of_before_a_loss_is_of_use_until_another_batch_is_done():
    restored = 0
    for seed in range(40):
        found = checkpoint_of()
        found.lose_logs(random.Random(seed))
        lost = numbers(found)
        if seed % 2:
            run_batch(found, max(lost["offsets"], default=-1) + 1)
            assert not found.restore_kept()
        elif found.restore_kept():
            restored += 1
            assert numbers(found) == numbers(checkpoint_of())
    assert restored > 5


# ---------------------------------------------------------------------- a query with state


class Run:
    """A run of a stateful query, batch by batch."""

    def __init__(self, kind, checkpoint=None):
        self.checkpoint = checkpoint or Checkpoint("cp", "q", Files(), starts_committed=False)
        self.query = StatefulQuery(kind, self.checkpoint, 2)
        self.query.begin(max(self.checkpoint.batches("commits"), default=-1) + 1)

    def batch(self, number, *rows, at_ms=0):
        planned = {"batchWatermarkMs": self.query.watermark, "batchTimestampMs": at_ms}
        self.checkpoint.create("offsets", number, f"v1\n{json.dumps(planned)}\n".encode())
        emitted = self.query.compute(number, rows)
        self.checkpoint.create("commits", number, self.query.committed())
        return emitted


def test_a_row_waits_for_the_watermark_that_batches_before_have_moved():
    run = Run("windows")
    assert not run.query.wants_another_batch, "never the first of a run"
    assert run.batch(0, (0, 0), (0, 1), (0, 2), (1, 0)) == []
    assert not run.query.wants_another_batch, "partition 1 is behind"
    assert run.batch(1, (1, 1), (1, 2)) == []
    assert run.query.wants_another_batch
    assert run.batch(2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert not run.query.wants_another_batch
    again = Run("windows", run.checkpoint)
    assert again.query.watermark == 2
    assert not again.query.wants_another_batch
    assert again.query.compute(2, []) == [(0, 0), (0, 1), (1, 0), (1, 1)], "done again"


def test_a_row_waits_for_its_timer_and_those_behind_it_wait_as_well():
    run = Run("timers")
    assert run.batch(0, (0, 0), (1, 0), at_ms=1000) == []
    assert run.batch(1, (0, 1), at_ms=500) == [], "a clock that was set back"
    assert run.batch(2, at_ms=500 + TIMEOUT_MS) == []
    assert run.batch(3, at_ms=1000 + TIMEOUT_MS) == [(0, 0), (0, 1), (1, 0)]


def test_a_version_of_the_state_that_is_missing_stops_the_query():
    run = Run("windows")
    run.batch(0, (0, 0))
    run.batch(1, (0, 1))
    run.checkpoint.purge(2)
    with pytest.raises(StateMissing, match="state/0/1 of cp does not exist"):
        run.query.compute(1, [])


# ---------------------------------------------------------------------- its output

ROWS = {(0, n) for n in range(4)}


def deployment_of(*checkpoints, ends=4):
    return SimpleNamespace(
        source=SimpleNamespace(ends={TopicPartition("in", 0): ends}),
        checkpoints=list(checkpoints),
        sinks=["sink"],
        progress_group_at=lambda checkpoint, sink: checkpoint.location,
        finished=checkpoints[-1],
    )


def held(location, version, *positions, begins=None):
    made = Checkpoint(location, "q", Files(), starts_committed=begins is not None)
    rows = [[0, n, 0] for n in positions]
    made.replace(STATE, version, json.dumps(rows).encode())
    plan = json.dumps({"in": {"0": begins or 0}})
    made.replace("offsets", 0, f"v1\n{{}}\n{plan}".encode())
    return made


def groups(**progress):
    return {name: {("in", 0): number} for name, number in progress.items()}


@pytest.mark.invariant(35)
def test_a_row_is_in_the_output_or_waits_in_the_state_of_the_last_batch():
    deployment, progress = deployment_of(held("cp", 2, 2, 3)), groups(cp=2)
    check_held(deployment, {(0, 0), (0, 1)}, progress)
    with pytest.raises(Violation, match=r"35: lost-write: .*missing=\[\(0, 1\)\]"):
        check_held(deployment, {(0, 0)}, progress)
    with pytest.raises(Violation, match="35: duplicate: rows are in the output and will be once"):
        check_held(deployment, {(0, 0), (0, 1), (0, 2)}, progress)
    with pytest.raises(Violation, match="35: garbage-read"):
        check_held(deployment, {(0, 0), (0, 1), (0, 9)}, progress)


@pytest.mark.invariant(35)
def test_only_what_waited_in_an_abandoned_checkpoint_is_lost_with_it():
    old, new = held("old", 5, 1), held("new", 2, 3, begins=2)
    check_held(deployment_of(old, new), {(0, 0), (0, 2)}, groups(old=5, new=2))
    with pytest.raises(Violation, match=r"missing=\[\(0, 0\)\]"):
        check_held(deployment_of(old, new), {(0, 2)}, groups(old=5, new=2))
    with pytest.raises(Violation, match=r"missing=\[\(0, 1\)\]"):
        check_held(deployment_of(old, new), {(0, 0), (0, 2)}, groups(old=6, new=2))
    late = held("new", 2, 3, begins=1)
    with pytest.raises(Violation, match=r"missing=\[\(0, 1\)\]"):
        check_held(deployment_of(old, late), {(0, 0), (0, 2)}, groups(old=5, new=2))


# ---------------------------------------------------------------------- seeds


def test_each_kind_of_query_and_of_loss_is_drawn():
    drawn = [draw_losses(seed) for seed in range(60)]
    assert {each.query.state for each in drawn} == {"", "windows", "timers"}
    for on in (
        lambda each: each.query.leaves_out and each.query.retained_batches,
        lambda each: each.query.reads_without_group,
        lambda each: each.faults.driver.unflushed_logs and each.faults.driver.power_loss,
        lambda each: each.faults.operator.logs_lost,
        lambda each: each.faults.operator.backup_restored,
    ):
        assert 3 < sum(map(bool, map(on, drawn))) < 50


def hold(seeds):
    for seed in seeds:
        verdict = run_seed(seed, "losses")
        story = "\n".join(verdict.last_lines)
        assert verdict.failure is None, f"seed {seed}: {verdict.failure}\n{story}"


@pytest.mark.invariant(3, 35, 46)
def test_exactly_once_holds_whatever_a_checkpoint_loses():
    hold(seeds_of_day(12, 400))


@pytest.mark.chaos
@pytest.mark.invariant(3, 35, 46)
@pytest.mark.parametrize("first", range(0, 400, 20))
def test_exactly_once_holds_whatever_many_checkpoints_lose(first):
    hold(range(first, first + 20))
