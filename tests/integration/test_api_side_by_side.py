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


@pytest.fixture(scope="module")
def sides(
    connector_spark: SparkSession,
    shared_brokers: Callable,
    tmp_path_factory: pytest.TempPathFactory,
    unique_names: Callable[[str], str],
) -> tuple[Side, ...]:
    """Both connectors in one session, each with an output topic of its own."""
    for jar in available(spark_kafka_jars):
        connector_spark.sql(f"ADD JAR '{jar}'")
    servers = shared_brokers("broker_sim").bootstrap_servers
    source = create_topic(servers, unique_names("in"), 1)
    produce_values(servers, source, ["a", "b", "c"])
    return tuple(
        Side(
            connector_spark,
            name,
            servers,
            (source, create_topic(servers, unique_names("out"), 1)),
            tmp_path_factory.mktemp(name),
        )
        for name in ("kafka", "txnlog")
    )


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


@pytest.mark.parametrize("call", EVERY)
def test_a_call_does_what_it_does_with_sparks_own_connector(
    call: Call, sides: tuple[Side, ...]
) -> None:
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
