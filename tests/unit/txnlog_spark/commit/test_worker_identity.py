"""What a worker of a query run goes on with: its own identity, the run's record, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnlog_spark.commit.journal import Attempt, RecordedIdentity
from txnlog_spark.commit.query import Held, _identity_of_run, _Run
from txnlog_spark.protocol.values import ProducerIdentity

MINE = ProducerIdentity("tid", 7, 3, initialised=True, last_batch_id=4, transaction_version=2)
LAST = Attempt("q", 5, "run", "tid", "g.progress.q", ("out", 0))
RECORD = RecordedIdentity("q", "run", "tid", 7, 4, True, 5, 2, 6)


def identity(
    recorded: RecordedIdentity | None,
    held: ProducerIdentity | None = MINE,
    attempt: Attempt | None = LAST,
) -> ProducerIdentity | None:
    run = _Run("q", "run", "tid", "cluster", attempt, recorded, None)
    return _identity_of_run(None if held is None else Held("q", "run", held), run)


def test_another_worker_of_the_run_has_committed_since_and_its_record_counts() -> None:
    assert identity(RECORD) == RECORD.identity()
    assert identity(RECORD, None) == RECORD.identity()


def test_the_worker_that_committed_last_goes_on_with_all_that_it_knows() -> None:
    mine = replace(MINE, sequences={("t", 0): 5})
    assert identity(replace(RECORD, producer_epoch=3), mine) is mine


@pytest.mark.invariant(18)
@pytest.mark.parametrize("recorded", [None, replace(RECORD, run_id="another")])
def test_without_the_runs_record_the_coordinator_is_asked_before_anything_is_sent(recorded) -> None:
    assert identity(recorded) == replace(MINE, initialised=False)
    assert identity(recorded, None) is None


def test_a_record_of_another_transactional_id_is_not_gone_on_with() -> None:
    assert identity(replace(RECORD, transactional_id="before")) is None


@pytest.mark.invariant(18)
@pytest.mark.parametrize("batch_id", [4, 7, None])
@pytest.mark.parametrize("run_id", ["run", "another"])
def test_an_attempt_that_is_not_of_the_recorded_commit_leaves_no_epoch_to_go_on_with(
    batch_id: int | None, run_id: str
) -> None:
    """It was begun after it, or an overtaken driver, or a late write of the store, set it back."""
    found = identity(RECORD, None, replace(LAST, run_id=run_id, batch_id=batch_id))
    begun_since = (run_id, batch_id) == ("run", 7)
    assert found == (None if begun_since else replace(RECORD.identity(), initialised=False))
