"""`gs://` on an emulator: the same bodies as for the other stores, and its refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from support.brokers.probe import free_ports
from support.harness.availability import available
from support.stores.gcs_emulator import BUCKET, GcsEmulator, gcs_emulator
from support.stores.store_contract import CHECKS

from txnlog_spark.storage.arrow import ObjectFiles
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.location import read_location

_numbers = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[GcsEmulator]:
    available(gcs_emulator)
    with GcsEmulator(tmp_path_factory.mktemp("gcs")) as made:
        yield made


def files_of(text: str, given: dict[str, str]) -> Files:
    settings = StorageSettings({**StorageSettings().values, **given})
    files = open_files("option", read_location("option", text), settings)
    assert isinstance(files, ObjectFiles)
    return files


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_google_cloud_storage_does_the_same(store: GcsEmulator, check: Callable[..., None]) -> None:
    text = f"gs://{BUCKET}/folder-{next(_numbers)}"
    check(files_of(text, store.options()), text)


def test_a_bucket_that_is_not_there_is_an_error_of_a_write(store: GcsEmulator) -> None:
    text = "gs://another/cp"
    with pytest.raises(OSError, match=r"it cannot be written.*Look at txnlog\.fs\.gs"):
        files_of(text, store.options()).write(f"{text}/metadata", b"1", durable=True)


def test_a_store_that_does_not_answer_is_an_error_with_what_to_look_at(
    store: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnlog_spark.storage.connect.RETRY_SECONDS_MAX", 1)
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    text = f"gs://{BUCKET}/cp"
    files = files_of(text, store.options() | {"gs.storage.root.url": address})
    with pytest.raises(OSError, match=r"it cannot be read.*Look at txnlog\.fs\.gs"):
        files.read(f"{text}/metadata")
