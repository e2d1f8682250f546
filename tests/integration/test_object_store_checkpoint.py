"""A checkpoint in an S3-compatible store, under a real query: killed, gone on with, looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.harness.availability import available
from support.spark.driver_rows import DRIVER_ROWS, play
from support.spark.spark_copy import KILLED
from support.stores.object_store import SECRET_KEY, ObjectStore
from support.stores.s3a import ObjectStoreQuery, s3a_jars

from txnlog_spark.tools.cli import main

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

PLANTED = "planted-azure-key"
SENT = next(row for row in DRIVER_ROWS if row.name == "D14 EndTxn sent")


@pytest.fixture
def query_of(shared_brokers, tmp_path: Path, unique) -> Iterator[Callable[[str], ObjectStoreQuery]]:
    """A query of a broker of one kind, with a store of its own."""
    jars = available(s3a_jars)
    with ObjectStore() as store:

        def made(broker: str) -> ObjectStoreQuery:
            bootstrap = shared_brokers(broker).bootstrap_servers
            return ObjectStoreQuery(store, jars, tmp_path, bootstrap, unique("s3a"))

        yield made


def test_a_driver_killed_while_it_commits_goes_on_from_an_object_store(query_of, capsys):
    query = query_of("broker_sim")
    events = query.folder / "events"
    events.mkdir()
    query.spark_config |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    query.spark_config["spark.sql.redaction.options.regex"] = "(?i)url|account[.]key"
    query.read_options["maxOffsetsPerTrigger"] = str(2 * query.batch_size)  # two batches
    query.write_options["txnlog.fs.azure.account.key"] = PLANTED
    play(query, (SENT,))
    assert list(events.iterdir())
    assert not query.checkpoint.exists()
    last = max(query.logged("commits"))
    assert json.loads(query.text_of("txnlog/attempt.json"))["batch_id"] == last
    assert len(query.names_in("txnlog/outputs")) == 1
    check_tool(query, last, capsys)
    check_secret_is_nowhere(query)


def check_tool(query: ObjectStoreQuery, last: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`progress show` reads the checkpoint where it is."""
    config = query.folder / "command.properties"
    lines = (f"{name}={value}" for name, value in query.store.options().items())
    config.write_text("\n".join(lines))
    where = ["--bootstrap-server", query.bootstrap, "--checkpoint", query.checkpoint_location]
    capsys.readouterr()
    code = main(["progress", "show", "--json", *where, "--command-config", str(config)])
    out, error = capsys.readouterr()
    assert code == 0, error
    shown = json.loads(out)
    assert shown["next_batch_id"] == last + 1
    assert set(shown["checkpoint"].values()) >= {last}
    config.unlink()


def check_secret_is_nowhere(query: ObjectStoreQuery) -> None:
    """Check the logs of Spark and of the connector, the events and the checkpoint."""
    logs = [path for path in query.folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("run-") for path in logs)
    for secret in (SECRET_KEY.encode(), PLANTED.encode()):
        assert [path for path in logs if secret in path.read_bytes()] == []
        assert [key for key in query.store.names() if secret in query.store.get(key)] == []


@pytest.mark.parametrize(
    "broker", ["broker_sim", pytest.param("apache_kafka", marks=pytest.mark.kafka)]
)
def test_every_row_of_the_fault_matrix_killed_with_an_object_store(query_of, broker):
    play(query_of(broker), DRIVER_ROWS)


def test_rows_staged_in_an_object_store_are_written_once_though_drivers_die(query_of):
    query = query_of("broker_sim")
    query.write_options["stagingLocation"] = query.store.location("staged")
    query.spark_config["spark.driver.maxResultSize"] = "10m"  # so that rows are too many for it
    query.read_options["maxOffsetsPerTrigger"] = "6000"
    query.feed(18_000)
    assert (
        query.run("produce.middle:after:kill-driver@0;end_txn:after:kill-driver@1").code == KILLED
    )
    left = [name for name in query.store.names() if name.endswith(".staged")]
    assert left
    assert query.run("end_txn:after:kill-driver@1").code == KILLED
    assert query.run().code == 0
    query.check_exactly_once()
    assert not [name for name in query.store.names() if name.endswith(".staged")]
