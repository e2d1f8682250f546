"""Rows D of docs/internals/faults.md beyond the plain kill.

Requests and answers are lost, errors are raised inside the commit, a driver wakes up after another
took over, and brokers are killed inside the transaction. Real Spark applications, looked at from
outside. A second driver that is neither stopped nor killed is the tests' own application.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import DataStreamWriter
from support.brokers.probe import wait_until
from support.spark.audit import check_audit
from support.spark.connector import finish as finish_query
from support.spark.copy_job import copy_writer
from support.spark.spark_copy import RUN_SECONDS_MAX, CopyQuery

pytestmark = pytest.mark.slow

SIM = "broker_sim"
KAFKA_IN_CHAOS = pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.chaos])
"""The same body, but run on Apache Kafka by `make chaos` only: a start of Spark takes seconds."""


def in_chaos(value: str):
    """A step or broker that only `make chaos` tries, as others like it are in `make test`."""
    return pytest.param(value, marks=pytest.mark.chaos)


@pytest.fixture
def query(broker, tmp_path, unique) -> CopyQuery:
    """A query with two batches to do."""
    made = CopyQuery(tmp_path, broker.bootstrap_servers, unique("query"))
    made.feed(60)
    return made


def on_brokers(*names):
    """Run on these brokers instead of on both."""
    return pytest.mark.parametrize("broker_name", names)


@pytest.fixture
def second_driver(connector_spark: SparkSession, query: CopyQuery) -> DataStreamWriter:
    """The same query in the tests' own application, to be started."""
    writer = copy_writer(connector_spark, query.all_read_options, query.all_write_options)
    return writer.trigger(availableNow=True)


def finish(query: CopyQuery) -> None:
    """Run to the end of the input, then prove."""
    run = query.run()
    assert run.code == 0, run.stderr[-3000:]
    query.check_exactly_once()
    check_audit(query)


@pytest.mark.chaos
def test_lost_requests_and_lost_answers_of_a_living_driver_double_nothing(query):
    # D13, D17 and the same for what comes before EndTxn: in each batch something else is lost.
    query.feed(61)
    lost = (
        "init_producer_id:before:drop-response@0;produce:before:drop-response@0;"
        "end_txn:before:drop-response@1;end_txn:before:drop-request@2;"
        "txn_offset_commit:before:drop-response@3;judge:before:drop-response@4"
    )
    fired: set[str] = set()
    for _ in range(4):
        run = query.run(lost)
        fired |= set(run.fired)
        if run.code == 0:
            break
        assert run.last_error, run.stderr[-3000:]
    assert run.code == 0, run.stderr[-3000:]
    assert fired == set(lost.split(";"))
    finish(query)
    # The last batch has one row only.
    assert len(query.records_of_batch(query.next_batch() - 1)) == 1


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("failpoint", "copies"),
    [
        pytest.param("produce.first:after:raise@1", None, id="D22-abort-inside-the-transaction"),
        pytest.param("end_txn:after:raise@1", 1, id="D23-abort-after-EndTxn-was-sent"),
    ],
)
def test_an_error_inside_the_commit_fails_the_query_and_its_restart_is_exactly_once(
    query, failpoint, copies
):
    run = query.run(failpoint)
    assert run.code == 1
    assert run.fired == (failpoint,)
    finish(query)
    if copies is not None:
        counts = query.output("read_uncommitted")
        assert {counts[place] for place in query.records_of_batch(1)} == {copies}


@pytest.mark.chaos
@pytest.mark.parametrize("step", ["produce.first:after", "end_txn:before", "end_txn:after"])
def test_a_stopped_driver_that_wakes_up_after_a_takeover_doubles_nothing(
    query, second_driver, step
):
    check_takeover(query, second_driver, step)


@pytest.mark.live
@on_brokers(in_chaos(SIM), pytest.param("apache_kafka", marks=pytest.mark.kafka))
def test_a_driver_that_wakes_up_after_another_took_over_is_fenced(query, second_driver):
    check_takeover(query, second_driver, "txn_offset_commit:after")


FAILED = "the query failed: "
"""Text that `copy_job.py` writes before the error that Spark raises."""


def check_takeover(query: CopyQuery, heir: DataStreamWriter, step: str) -> None:
    """D9, the SIGSTOP half of the matrix; both drivers have the same transactional id."""
    failpoint = f"{step}:stop-driver@1"
    old = query.start(failpoint)
    try:
        old.wait_fired(failpoint)
        finish_query(heir.start())
        old.resume()
        ended = old.wait()
    finally:
        old.kill()
    assert ended.code == 1
    if step != "end_txn:after":
        # Later it has nothing more to ask Kafka: Spark's own commit log stops it.
        assert "ProducerFenced" in ended.last_error, ended.stderr[-3000:]
        shown = ended.stderr.partition(FAILED)[2].splitlines()
        assert shown[1].startswith("[TXNLOG_PRODUCER_FENCED"), shown
    query.check_exactly_once()
    check_audit(query)


def reached(hook: Path) -> None:
    """Wait until a driver stands at this hook."""
    wait_until(hook.with_suffix(".reached").exists, hook.name, timeout_s=RUN_SECONDS_MAX)


@on_brokers(SIM, KAFKA_IN_CHAOS)
def test_a_second_driver_that_is_started_by_mistake_does_not_end_the_healthy_one(
    query, connector_spark
):
    # It finds batch 1 planned and not yet noted as done, while the first driver goes on to batch 4.
    query.feed(90)
    noting, waiting, replaying = (query.folder / n for n in ("noting", "waiting", "replaying"))
    hooks = f"commit_log:before:hook:{noting}@1;collect:before:hook:{waiting}@4"
    held = udf(held_at(replaying), "boolean")
    healthy = query.start(hooks)
    newcomer = None
    try:
        reached(noting)
        one_row = connector_spark.range(1).where(held("id"))
        options = query.all_read_options, query.all_write_options
        newcomer = copy_writer(connector_spark, *options, beside=one_row).start()
        reached(replaying)
        noting.with_suffix(".go").touch()
        reached(waiting)
        replaying.with_suffix(".go").touch()
        with pytest.raises(
            StreamingQueryException, match=r"TXNLOG_PRODUCER_FENCED.*Nothing was written"
        ):
            finish_query(newcomer)
        waiting.with_suffix(".go").touch()
        ended = healthy.wait()
        assert ended.code == 0, ended.stderr[-3000:]
    finally:
        replaying.with_suffix(".go").touch()
        healthy.kill()
        if newcomer is not None:
            newcomer.stop()
    query.check_exactly_once()
    check_audit(query)


def held_at(hook: Path) -> Callable[[int], bool]:
    """Return a filter whose tasks stand at this hook, as a failpoint does."""
    here, go = str(hook.with_suffix(".reached")), str(hook.with_suffix(".go"))

    def held(_: int) -> bool:
        Path(here).touch()
        while not Path(go).exists():
            threading.Event().wait(0.05)
        return True

    return held


@on_brokers(SIM, KAFKA_IN_CHAOS)
@pytest.mark.chaos
@pytest.mark.parametrize(
    "step", ["produce.middle:after", "txn_offset_commit:after", "end_txn:after"]
)
def test_a_broker_killed_inside_the_commit_costs_nothing(broker, query, step):
    # After EndTxn was answered: D16, the markers of a prepared transaction (on broker_sim).
    hook = query.folder / "hook"
    failpoint = f"{step}:hook:{hook}@1"
    job = query.start(failpoint)
    try:
        wait_until(hook.with_suffix(".reached").exists, "the hook", timeout_s=RUN_SECONDS_MAX)
        broker.restart()
        hook.with_suffix(".go").touch()
        job.wait()
    finally:
        job.kill()
    finish(query)
