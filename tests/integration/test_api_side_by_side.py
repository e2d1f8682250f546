"""Every public method of PySpark's readers and writers, with Spark's own connector and with this
one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.clients.librdkafka import create_topic, produce_values
from support.harness.availability import available
from support.spark.api_calls import CALLS, OTHER_FORMATS, Call, Outcome, Side
from support.spark.spark_kafka_jars import spark_kafka_jars

pytestmark = pytest.mark.slow

MIGRATION = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
EVERY = [
    pytest.param(call, id=f"{kind.__name__}.{name}")
    for kind, calls in CALLS.items()
    for name, call in calls.items()
    if hasattr(kind, name.partition(":")[0])  # an older PySpark has fewer methods
]
NOT_BOTH = [each for each in EVERY if each.values[0].outcome is not Outcome.BOTH]
"""Calls that `txnlog` refuses, or takes alone. The other tests in Spark make the usual calls."""


@pytest.fixture(scope="module")
def side_of(
    connector_spark: SparkSession,
    shared_brokers: Callable,
    tmp_path_factory: pytest.TempPathFactory,
    unique_names: Callable[[str], str],
) -> Callable[[str], Side]:
    """Return the side of a connector: both read one topic, and each writes one of its own."""
    servers = shared_brokers("broker_sim").bootstrap_servers
    source = create_topic(servers, unique_names("in"), 1)
    produce_values(servers, source, ["a", "b", "c"])

    def made(name: str) -> Side:
        topics = source, create_topic(servers, unique_names("out"), 1)
        return Side(connector_spark, name, servers, topics, tmp_path_factory.mktemp(name))

    return made


@pytest.fixture(scope="module")
def ours(side_of: Callable[[str], Side]) -> Side:
    return side_of("txnlog")


@pytest.fixture(scope="module")
def theirs(side_of: Callable[[str], Side]) -> Side:
    """Spark's own connector, in the same session."""
    side = side_of("kafka")
    for jar in available(spark_kafka_jars):
        side.spark.sql(f"ADD JAR '{jar}'")
    return side


def error_of(call: Call, side: Side) -> PySparkException | None:
    try:
        call.make(side)
    except PySparkException as error:
        return error
    return None


@pytest.mark.parametrize("kind", CALLS)
def test_every_public_method_of_pyspark_is_decided(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    decided = {name.partition(":")[0] for name in CALLS[kind]}
    assert public - OTHER_FORMATS - decided == set()


@pytest.mark.parametrize("call", NOT_BOTH)
def test_a_call_is_refused_or_taken_as_the_page_of_differences_says(call: Call, ours: Side) -> None:
    error = error_of(call, ours)
    assert (error is None) == (call.outcome is Outcome.TXNLOG), error
    assert call.told in MIGRATION.read_text()


@pytest.mark.weekly
@pytest.mark.parametrize("call", EVERY)
def test_a_call_does_what_it_does_with_sparks_own_connector(
    call: Call, ours: Side, theirs: Side
) -> None:
    sides = theirs, ours
    for side in sides:
        side.written()  # by the calls before
    errors = {side.name: error_of(call, side) for side in sides}
    outcome = {
        (True, True): Outcome.BOTH,
        (False, False): Outcome.NEITHER,
        (True, False): Outcome.KAFKA,
        (False, True): Outcome.TXNLOG,
    }[errors["kafka"] is None, errors["txnlog"] is None]
    assert outcome is call.outcome, errors
    kafka_wrote, txnlog_wrote = (side.written() for side in sides)
    assert kafka_wrote == txnlog_wrote or outcome in (Outcome.KAFKA, Outcome.TXNLOG)
    assert call.told in MIGRATION.read_text()
