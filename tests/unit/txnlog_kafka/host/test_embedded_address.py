"""Recorded address of an embedded broker: used only for the cluster that started there."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest
from support.brokers.sim_broker import SimBroker

from broker_sim import LocalCluster
from txnlog_kafka import processes
from txnlog_kafka.host import broker_process
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_spark.errors import OptionError, TxnLogError


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A broker of some other directory: (address, cluster id)."""
    with SimBroker(tmp_path_factory.mktemp("other")) as broker:
        with Client(broker.bootstrap_servers) as client:
            client.run(refresh_metadata(client.session, ()))
            cluster_id = client.session.cluster.cluster_id
        yield broker.bootstrap_servers, cluster_id


@pytest.fixture
def started(monkeypatch) -> list[Path]:
    """The directories for which a broker would have been started."""
    directories: list[Path] = []

    def start(directory: Path) -> str:
        directories.append(directory)
        return "own:1"

    monkeypatch.setattr(broker_process, "_start_broker", start)
    return directories


def record(folder: Path, address: str, **fields) -> None:
    """Write the file that tells where the broker is, with a pid that was used again since."""
    fields = {
        "version": 3, "bootstrap.servers": address, "pid": os.getpid(), "pid.started": "before"
    } | fields  # fmt: skip
    (folder / "embedded.json").write_text(json.dumps(fields))


def test_the_recorded_address_of_the_same_cluster_is_used(running, started, tmp_path) -> None:
    address, cluster_id = running
    record(tmp_path, address, **{"cluster.id": cluster_id})
    assert broker_process.ensure_broker(str(tmp_path), is_made=True) == address
    assert started == []


@pytest.mark.parametrize("fields", [{}, {"cluster.id": "another"}])
def test_an_address_where_another_cluster_answers_is_not_attached_to(
    running, started, tmp_path, fields
) -> None:
    """Its pid and port were used again, by the broker of another directory."""
    record(tmp_path, running[0], **fields)
    assert broker_process.ensure_broker(str(tmp_path), is_made=True) == "own:1"
    assert started == [tmp_path]


def test_an_address_where_no_broker_answers_is_not_attached_to(
    started, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(broker_process, "ANSWER_TIMEOUT_MS", 300)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        record(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", **{"cluster.id": "c"})
        assert broker_process.ensure_broker(str(tmp_path), is_made=True) == "own:1"
    assert started == [tmp_path]


def test_a_broker_that_dies_while_it_is_asked_is_replaced_at_once(
    started, tmp_path, monkeypatch
) -> None:
    """Its process and its port may still be there for a moment after the kill."""
    listening = socket.create_server(("127.0.0.1", 0))
    record(tmp_path, f"127.0.0.1:{listening.getsockname()[1]}", **{"cluster.id": "c"})
    asked: list[str] = []
    ask = broker_process._cluster_id

    def dies(address: str) -> str:
        asked.append(address)
        listening.close()
        return ask(address)

    monkeypatch.setattr(broker_process, "_cluster_id", dies)
    assert broker_process.ensure_broker(str(tmp_path), is_made=True) == "own:1"
    assert len(asked) == 1
    assert started == [tmp_path]


def test_a_broker_that_neither_answers_nor_ends_is_named_with_what_to_do(
    started, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(broker_process, "ANSWER_TIMEOUT_MS", 50)
    monkeypatch.setattr(broker_process, "START_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        own_start = processes.start_time(os.getpid())
        record(tmp_path, address, **{"cluster.id": "c", "pid.started": own_start})
        with pytest.raises(TxnLogError) as caught:
            broker_process.ensure_broker(str(tmp_path), is_made=True)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert text.endswith(f"\nDo this if it hangs: kill -9 {os.getpid()}")
    assert "--data-dir" not in text
    assert started == []


def test_data_that_another_broker_has_is_an_error_that_names_the_path(tmp_path) -> None:
    with LocalCluster(tmp_path / "data"), pytest.raises(TxnLogError) as caught:
        broker_process.ensure_broker(str(tmp_path), is_made=True)
    assert f"the data under {tmp_path} is in use" in str(caught.value)
    assert "--data-dir" not in str(caught.value)


def refused(path: object, *, is_made: bool) -> OptionError:
    """The error about a path, which must be refused."""
    with pytest.raises(OptionError) as caught:
        broker_process.ensure_broker(str(path), is_made=is_made)
    assert (caught.value.name, caught.value.value) == ("path", str(path))
    return caught.value


@pytest.mark.parametrize("name", ["mistyped", "no/such/parent", "other"])
def test_a_reader_makes_no_broker_where_none_has_data(started, tmp_path, name) -> None:
    (tmp_path / "other" / "data").mkdir(parents=True)
    (tmp_path / "other" / "data" / "rows.csv").write_text("1,2")
    before = sorted(tmp_path.rglob("*"))
    text = refused(tmp_path / name, is_made=False).text
    assert f"there is no broker's data at {tmp_path / name}: correct the path" in text
    assert (started, sorted(tmp_path.rglob("*"))) == ([], before)


@pytest.mark.parametrize("name", ["new", "no/such/parent", "other"])
def test_a_writer_makes_the_broker(started, tmp_path, name) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rows.csv").write_text("1,2")
    assert broker_process.ensure_broker(str(tmp_path / name), is_made=True) == "own:1"
    assert started == [tmp_path / name]


@pytest.mark.parametrize("file", ["embedded.lock", "data/meta.properties"])
def test_a_reader_starts_the_broker_of_data_that_are_there_or_are_being_made(
    started, tmp_path, file
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / file).touch()
    assert broker_process.ensure_broker(str(tmp_path), is_made=False) == "own:1"
    assert started == [tmp_path]


@pytest.mark.parametrize("is_made", [True, False])
def test_a_path_that_is_no_folder_is_refused_by_name(
    started, tmp_path, monkeypatch, is_made
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    monkeypatch.chdir(tmp_path)
    text = refused("file", is_made=is_made).text
    assert f"option path='file': {tmp_path}/file is a file" in text
    text = refused("link", is_made=is_made).text
    assert f"{tmp_path}/link is a link to nothing, which does not exist" in text
    assert "name the folder of the embedded broker" in refused("", is_made=is_made).text
    assert "File name too long" in refused("n" * 300, is_made=is_made).text
    assert started == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]


def test_a_path_below_a_file_is_refused_by_name(started, tmp_path) -> None:
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file" / "x", is_made=True).text
    assert "no broker's data" in refused(tmp_path / "file" / "x", is_made=False).text
    assert started == []


def test_a_folder_without_permission_is_refused_by_name(started, tmp_path, monkeypatch) -> None:
    """A superuser may do all: so the system's answer is given here."""

    def deny(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / "embedded.lock").touch()
    monkeypatch.setattr(broker_process, "locked", deny)
    text = refused(tmp_path, is_made=False).text
    assert f"no broker can be started there, Permission denied: {tmp_path}/embedded.lock" in text
    assert started == []
