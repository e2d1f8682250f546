"""A checkpoint in an S3-compatible store, under a real query: killed, gone on with, looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.audit import check_audit
from support.availability import available
from support.driver_rows import DRIVER_ROWS, Row, Story
from support.object_store import SECRET_KEY, ObjectStore
from support.s3a import ObjectStoreQuery, s3a_jars

from txnlog_spark.tools.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

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


def play(query: ObjectStoreQuery, rows: tuple[Row, ...]) -> None:
    """These kills in one life, then the proof."""
    story = Story(query)
    story.play(rows)
    assert story.failures == {}
    assert query.logged("offsets") == query.logged("commits")
    query.check_exactly_once()
    story.check_copies()
    check_audit(query)


def test_a_driver_killed_while_it_commits_goes_on_from_an_object_store(query_of, capsys):
    query = query_of("broker_sim")
    play(query, (SENT,))
    assert not query.checkpoint.exists()
    last = max(query.logged("commits"))
    assert json.loads(query.text_of("txnlog/attempt.json"))["batch_id"] == last
    assert json.loads(query.text_of("txnlog/identity.json"))["next_batch_id"] == last + 1
    assert len(query.names_in("txnlog/ids")) == 1
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
    """Neither in a log of Spark or of the connector nor in the checkpoint."""
    logs = [path for path in query.folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("run-") for path in logs)
    assert [path for path in logs if SECRET_KEY.encode() in path.read_bytes()] == []
    keys = query.store.names()
    assert [key for key in keys if SECRET_KEY.encode() in query.store.get(key)] == []


@pytest.mark.chaos
@pytest.mark.parametrize(
    "broker", ["broker_sim", pytest.param("apache_kafka", marks=pytest.mark.kafka)]
)
def test_every_row_of_the_fault_matrix_killed_with_an_object_store(query_of, broker):
    play(query_of(broker), DRIVER_ROWS)
