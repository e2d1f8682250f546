"""The witness of what one driver does to others."""

from types import SimpleNamespace

import pytest

from simulation.checkers.output_witness import OutputWitness
from simulation.hosts.checkpoint import STORE_FAILED, Checkpoint, Files
from simulation.violation import Violation
from txnlog_kafka.operations.effects import Failpoint, ReadFile, WriteFile
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_spark.commit.plan import CommitOptions

PATH = "checkpoint/txnlog/attempt.json"


class Run:
    """A driver of the checkpoint, step by step."""

    def __init__(self, run_id, checkpoint, records):
        options = CommitOptions(group_id="g")
        driver = SimpleNamespace(run_id=run_id, checkpoint=checkpoint, options=options)
        self._run_id, self._checkpoint = run_id, checkpoint
        self._witness = OutputWitness(driver, records, None, is_refused=False)

    def begins(self):
        self._witness.on_reached(Failpoint("collect", "before", 0))

    def reads(self, *, fails=False):
        self._ask(ReadFile(PATH), performs=True, fails=fails)

    def records(self, *, performs=True, fails=False):
        self.reads()
        self.writes(performs=performs, fails=fails)

    def writes(self, *, performs=True, fails=False):
        self._ask(WriteFile(PATH, self._run_id.encode(), True), performs=performs, fails=fails)

    def fences(self):
        api = APIS[ApiKey.INIT_PRODUCER_ID]
        self._witness.on_sent(api.request(transactional_id="txnlog-g", transaction_timeout_ms=1))

    def _ask(self, ask, *, performs, fails):
        def perform():
            found = self._checkpoint.perform(ask) if performs else None
            return STORE_FAILED if fails else found

        self._witness.served(ask, perform)


@pytest.fixture
def runs():
    checkpoint = Checkpoint("checkpoint", "query", Files(), starts_committed=False)
    records = {}
    return [Run(f"run-{number}", checkpoint, records) for number in range(3)]


def assert_overtaken(run):
    with pytest.raises(Violation, match="invariant 78:"):
        run.fences()


@pytest.mark.invariant(78)
def test_a_run_that_has_read_or_could_read_of_a_newer_one_and_fences_is_noticed(runs):
    first, second, third = runs
    first.records()
    second.records()
    third.records()
    first.fences()
    first.begins()
    assert_overtaken(first)
    second.reads(fails=True)
    second.fences()
    second.reads()
    assert_overtaken(second)
    third.begins()
    third.fences()


@pytest.mark.invariant(78)
def test_what_a_store_that_failed_has_written_is_recorded(runs):
    first, second, third = runs
    first.records()
    second.records(performs=False, fails=True)
    first.begins()
    first.fences()
    third.records(fails=True)
    first.begins()
    assert_overtaken(first)


@pytest.mark.invariant(78)
def test_a_run_that_has_set_the_record_back_is_not_overtaken(runs):
    first, second, _ = runs
    first.reads()
    second.records()
    first.writes()
    first.begins()
    first.fences()


@pytest.mark.invariant(78)
def test_a_record_that_an_older_run_writes_over_before_it_is_read_ends_nobody(runs):
    """A driver that was paused before it wrote: nothing says any more who has followed whom."""
    oldest, first, second = runs
    oldest.reads()
    first.records()
    second.records()
    first.begins()
    oldest.writes()
    first.reads()
    first.fences()


@pytest.mark.invariant(78)
def test_a_run_that_was_told_and_tries_again_counts_by_the_record_that_stands_then(runs):
    oldest, first, second = runs
    oldest.reads()
    first.records()
    second.records()
    first.reads()
    oldest.writes()
    assert_overtaken(first)
    first.begins()
    first.fences()
