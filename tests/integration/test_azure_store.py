"""`abfss://` on Microsoft's emulator: the same bodies as for the other stores, and its refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from support.harness.availability import available
from support.stores.azurite import ACCOUNT_KEY, Azurite, azurite
from support.stores.store_contract import CHECKS

from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.location import read_location

WRONG_KEY = "aHVudGVyMi1odW50ZXIy"
_numbers = itertools.count()


pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Azurite]:
    available(azurite)
    with Azurite(tmp_path_factory.mktemp("azurite")) as made:
        yield made


def files_of(store: Azurite, text: str, **changes: str) -> Files:
    given = {"azure.abfs.endpoint": store.address, "azure.account.key": ACCOUNT_KEY, **changes}
    settings = StorageSettings({**StorageSettings().values, **given})
    return open_files("option", read_location("option", text), settings)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_azure_does_the_same(store: Azurite, check: Callable[..., None]) -> None:
    text = store.location(f"folder-{next(_numbers)}")
    check(files_of(store, text), text)


def test_a_file_of_several_blocks_is_seen_when_all_are_there(store: Azurite, monkeypatch) -> None:
    monkeypatch.setattr("txnlog_spark.storage.azure.BLOCK_BYTES", 1000)
    path = store.location("blocks/one")
    files = files_of(store, store.location("blocks"))
    output = files.open_output(path)
    for _ in range(25):
        output.write(b"x" * 99)
        assert files.read(path) is None
    output.close()
    assert files.read(path) == b"x" * 2475


def test_a_wrong_key_is_told_what_to_look_at_and_not_shown(store: Azurite) -> None:
    text = store.location("cp")
    files = files_of(store, text, **{"azure.account.key": WRONG_KEY})
    with pytest.raises(OSError, match=r"AuthorizationFailure.*Look at txnlog\.fs\.azure") as caught:
        files.read(f"{text}/metadata")
    assert WRONG_KEY not in str(caught.value)


def test_a_container_that_is_not_there_is_an_error_and_no_empty_checkpoint(store: Azurite) -> None:
    text = store.location("cp").replace("//checkpoints@", "//another@")
    with pytest.raises(OSError, match="The specified container does not exist"):
        files_of(store, text).read(f"{text}/metadata")
