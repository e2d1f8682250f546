"""Batch writes: versions of an application count for each target, and offsets without rows."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import CoreBroker
from support.query.commit_plans import record_batch, staged

from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import batch_write
from txnlog_spark.commit.batch_write import BatchWrite, commit_write
from txnlog_spark.commit.output import readable_app_progress_group
from txnlog_spark.commit.plan import CommitOptions, CommitOutcome
from txnlog_spark.errors import AnotherOutput

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> CoreBroker:
    made = CoreBroker(request.param)
    made.create_topics(other=1)
    return made


def write(
    cluster: CoreBroker, version: int, target: str | None = "out", **changes: Any
) -> CommitOutcome:
    """Version `version` of application `app`: a row for `target`, or one that names `out`."""
    options = CommitOptions(topic=target, group_id=changes.pop("group_id", None))
    rows = [*staged(target or "out", 0, record_batch(f"{target}.{version}"))]
    given = {"staged": rows, "app_id": "app", "version": version, **changes}
    asked = BatchWrite(write_id=f"write-{version}", options=options, **given)
    outcome: CommitOutcome = cluster.run(commit_write(cluster.session(), asked))
    return outcome


def values(cluster: CoreBroker, topic: str) -> list[str]:
    return [value.decode() for value in cluster.committed_values(topic, 0)]


@pytest.mark.parametrize(("version", "skipped"), [(4, True), (5, True), (6, False), (9, False)])
def test_a_version_at_or_below_the_committed_one_is_skipped(
    cluster: CoreBroker, version: int, skipped: bool
) -> None:
    write(cluster, 5)
    assert write(cluster, version).skipped == skipped
    assert values(cluster, "out") == ["out.5"] + ([] if skipped else [f"out.{version}"])


def test_one_version_is_written_once_to_each_target(cluster: CoreBroker) -> None:
    """Delta Lake behaves alike; rows that name their topics count as a target of their own."""
    for target in ("out", "other", None):
        assert not write(cluster, 3, target).skipped
        assert write(cluster, 3, target).skipped
    assert values(cluster, "out") == ["out.3", "None.3"]
    assert values(cluster, "other") == ["other.3"]
    assert not write(cluster, 4, "other").skipped


def test_a_write_needs_neither_a_checkpoint_nor_a_baseline(cluster: CoreBroker) -> None:
    write(cluster, 0)
    assert not cluster.files
    assert [r.committed for r in cluster.requests(K.END_TXN)] == [True]


def test_the_progress_of_an_application_stays_on_the_topic_where_it_was_first(
    cluster: CoreBroker,
) -> None:
    """If the progress moved to another topic, deleting that topic would uncover older progress."""
    write(cluster, 0, source_offsets={IN: 7}, group_id="g")
    for version in (1, 2):
        assert not write(cluster, version).skipped
    assert list(cluster.offsets("app.progress.out")) == [IN]
    cluster.delete_topic("other")
    assert write(cluster, 2).skipped


def test_progress_that_another_output_has_in_the_group_of_an_application_is_refused(
    cluster: CoreBroker,
) -> None:
    """Such as of another cluster, whose group was mirrored with its offsets."""
    write(cluster, 3)
    offset, metadata = cluster.offsets("app.progress.out")["out", 0]
    mirrored = metadata.replace('"o":"', '"o":"0')
    cluster.commit_offsets("app.progress.out", {("out", 0): (offset, mirrored)})
    with pytest.raises(AnotherOutput, match=r"\(version 3\) was committed for another output"):
        write(cluster, 3)
    assert values(cluster, "out") == ["out.3"]


def test_applications_whose_parts_make_up_one_name_do_not_fence_each_other(
    cluster: CoreBroker,
) -> None:
    cluster.create_topics(**{"eu.orders": 1, "orders": 1})
    write(cluster, 0, "eu.orders", app_id="etl")
    epoch = cluster.transaction("txnlog-app-etl.eu.orders").producer_epoch
    write(cluster, 0, "orders", app_id="etl.eu")
    assert cluster.transaction("txnlog-app-etl.eu.orders").producer_epoch == epoch
    (made,) = [
        r.transactional_id
        for r in cluster.requests(K.INIT_PRODUCER_ID)
        if r.transactional_id.startswith("txnlog-app-etl.eu.orders~")
    ]
    assert len(made) == len("txnlog-app-etl.eu.orders~") + 16


def test_a_version_is_found_in_the_progress_group_that_version_0_1_0_gave_the_application(
    cluster: CoreBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as former:
        former.setattr(batch_write, "app_progress_group", readable_app_progress_group)
        write(cluster, 3, app_id="etl.progress")
    assert write(cluster, 3, app_id="etl.progress").skipped
    assert not write(cluster, 4, app_id="etl.progress").skipped
    assert cluster.offsets("etl.progress.progress.out")[OUT][0] == 5
    assert write(cluster, 3, "other", app_id="etl.progress").skipped is False
    assert not cluster.offsets("etl.progress.progress.other")
    assert values(cluster, "out") == ["out.3", "out.4"]


@pytest.mark.parametrize("app_id", ["app", None])
def test_offsets_are_committed_with_rows_and_without(
    cluster: CoreBroker, monkeypatch: pytest.MonkeyPatch, app_id: str | None
) -> None:
    monkeypatch.setattr(batch_write, "delete_group", lambda *_asked, **_how: iter(()))
    for end, rows in ((7, [*staged("out", 0, record_batch("a"))]), (9, [])):
        ends = {IN: end}
        given = {"app_id": app_id, "source_offsets": ends, "group_id": "g", "staged": rows}
        assert not write(cluster, end, **given).skipped
        assert cluster.offsets("g") == {IN: (end, "")}
    assert values(cluster, "out") == ["a"]
