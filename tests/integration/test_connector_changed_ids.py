"""A query whose transactional id is another after a restart, while its old driver still lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.query.checkpoint_query import Query

from txnlog_kafka.operations.effects import Operation
from txnlog_spark.commit import attempt, micro_batch
from txnlog_spark.commit import query as query_module
from txnlog_spark.commit.micro_batch import commit_batch
from txnlog_spark.commit.plan import Committer
from txnlog_spark.errors import ProducerFenced
from txnlog_spark.sink.committer import commit_streaming
from txnlog_spark.sink.settings import read_sink_settings

pytestmark = pytest.mark.live


def dying(*_args: object) -> Iterator[None]:
    raise RuntimeError("the driver dies here")
    yield


def settings_with(query: Query, **options: str):
    base = {
        "kafka.bootstrap.servers": query.bootstrap,
        "checkpointLocation": str(query.checkpoint),
    }
    return read_sink_settings(base | options, streaming=True)


@pytest.fixture
def query(broker, tmp_path: Path, unique: Callable[[str], str]) -> Query:
    made = Query(broker, tmp_path / "checkpoint", unique)
    made.commit(0, ["a"])
    made.log(1, 20)
    return made


def renamed(query: Query, name: str):
    return settings_with(query, **{"kafka.group.id": query.group, "kafka.transactional.id": name})


def test_a_driver_under_the_old_id_cannot_commit_what_the_new_one_has(
    query: Query, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one stops before TxnOffsetCommit, until the new one has committed."""
    produce = micro_batch.produce_staged

    def overtaken(*arguments: Any) -> Operation[object]:
        monkeypatch.setattr(micro_batch, "produce_staged", produce)
        yield from produce(*arguments)
        commit_streaming(renamed(query, unique("other")), [query.stage(1, ["b"])], 1, "run-2")

    monkeypatch.setattr(micro_batch, "produce_staged", overtaken)
    with pytest.raises(ProducerFenced):
        query.commit(1, ["b"])
    assert query.values() == ["a", "b"]


def test_the_old_driver_does_not_fence_the_new_one_when_it_goes_on(
    query: Query, unique: Callable[[str], str]
) -> None:
    new = renamed(query, unique("other"))
    commit_streaming(new, [query.stage(1, ["b"])], 1, "run-2")
    with pytest.raises(ProducerFenced):
        query.commit(2, ["zombie"], run="run-1")
    commit_streaming(new, [query.stage(2, ["c"])], 2, "run-2")
    assert query.values() == ["a", "b", "c"]


def test_a_driver_that_dies_when_it_has_its_new_id_has_begun_nothing(
    query: Query, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("other")
    with monkeypatch.context() as patched:
        patched.setattr(attempt, "fence_other_ids", dying)
        with pytest.raises(RuntimeError, match="dies here"):
            commit_streaming(renamed(query, name), [query.stage(1, ["b"])], 1, "run-2")
    assert query.begun().batch_id == 0
    commit_streaming(renamed(query, name), [query.stage(1, ["b"])], 1, "run-3")
    assert query.values() == ["a", "b"]


def test_an_old_driver_that_asks_for_its_id_last_doubles_nothing(
    query: Query, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new driver has begun the batch, and died, after the old one had read the record."""
    new = renamed(query, unique("other"))

    def overtaken(session, plan):
        monkeypatch.setattr(query_module, "commit_batch", commit_batch)
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="dies here"):
            patched.setattr(micro_batch, "produce_staged", dying)
            commit_streaming(new, [query.stage(1, ["b"], "new")], 1, "run-2")
        return (yield from commit_batch(session, plan))

    monkeypatch.setattr(query_module, "commit_batch", overtaken)
    with pytest.raises(ProducerFenced, match="has begun batch 1"):
        query.commit(1, ["b"], run="run-1")
    commit_streaming(new, [query.stage(1, ["b"], "new")], 1, "run-2")
    query.log(2, 30)
    commit_streaming(new, [query.stage(2, ["c"], "new")], 2, "run-2")
    assert query.values() == ["a", "b", "c"]


def test_of_two_drivers_with_two_new_ids_one_goes_on(
    query: Query, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is stopped before it asks for its id, between which the second does the batch."""
    first, second = renamed(query, unique("first")), renamed(query, unique("second"))
    record = attempt.record_output

    def overtaken(committer: Committer) -> Operation[None]:
        monkeypatch.setattr(attempt, "record_output", record)
        yield from record(committer)
        commit_streaming(second, [query.stage(1, ["b"])], 1, "run-2")

    monkeypatch.setattr(attempt, "record_output", overtaken)
    commit_streaming(first, [query.stage(1, ["b"], "first")], 1, "run-3")
    query.log(2, 30)
    commit_streaming(first, [query.stage(2, ["c"], "first")], 2, "run-3")
    with pytest.raises(ProducerFenced, match="has begun batch 2"):
        commit_streaming(second, [query.stage(2, ["c"], "second")], 2, "run-2")
    assert query.values() == ["a", "b", "c"]


def test_progress_stays_in_its_group_when_the_ids_that_it_was_named_after_change(
    query: Query, unique: Callable[[str], str]
) -> None:
    other = settings_with(query, **{"kafka.transactional.id": unique("other")})
    commit_streaming(other, [query.stage(1, ["b"])], 1, "run-2")
    commit_streaming(query.settings, [query.stage(1, ["b"], "replayed")], 1, "run-3")
    assert query.values() == ["a", "b"]
