"""A batch that takes longer than its transaction timeout: what is said, and doing what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.brokers.probe import wait_until
from support.query.checkpoint_query import Query

from txnlog_kafka.host.client import Client
from txnlog_spark.commit import micro_batch
from txnlog_spark.errors import TransactionTimedOut
from txnlog_spark.sink.settings import read_sink_settings

pytestmark = pytest.mark.live

SWEEP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


def test_the_error_names_the_timeout_that_the_batch_needs_and_following_it_commits_it_once(
    new_broker, tmp_path: Path, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = new_broker(SWEEP)
    short = {"kafka.transaction.timeout.ms": "1000"}
    query = Query(broker, tmp_path / "checkpoint", unique, **short)
    query.commit(0, ["first"])
    transactional_id = query.settings.commit_options.transactional_id_of(query.query_id)
    produce_staged = micro_batch.produce_staged
    tries = []

    def aborted() -> bool:
        with Client(query.bootstrap) as client:
            found = client.describe_transaction(transactional_id)
        return found is not None and found.state == "CompleteAbort"

    def slow(session, transaction, plan, produced):
        tries.append(plan.batch_id)
        yield from produce_staged(
            session, transaction, replace(plan, staged=plan.staged[:1]), produced
        )
        wait_until(aborted, "the coordinator has aborted the transaction")
        yield from produce_staged(
            session, transaction, replace(plan, staged=plan.staged[1:]), produced
        )

    # The coordinator aborts the transaction between the two halves of the batch.
    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "produce_staged", slow)
        with pytest.raises(TransactionTimedOut) as caught:
            query.commit(1, ["a", "bb"])
    text = str(caught.value)
    assert "kafka.transaction.timeout.ms=1000" in text
    assert "transaction.max.timeout.ms, 900000 here" in text
    assert tries == [1], "the same batch with the same timeout is not tried again"
    assert query.values() == ["first"]
    # The restart takes the timeout that the error names.
    needed = re.search(r"to at least (\d+)", text)
    assert needed is not None
    options = {
        "kafka.bootstrap.servers": query.bootstrap,
        "checkpointLocation": str(query.checkpoint),
        "kafka.group.id": query.group,
        "kafka.transaction.timeout.ms": needed.group(1),
    }
    query.settings = read_sink_settings(options, streaming=True)
    query.commit(1, ["a", "bb"], run="run-2")
    assert query.values() == ["a", "bb", "first"]
