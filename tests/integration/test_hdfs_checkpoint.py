"""A checkpoint in HDFS, where a file is seen while it is written and a rename replaces nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.harness.availability import available
from support.spark.driver_rows import DRIVER_ROWS, play
from support.stores.hdfs import Hdfs, HdfsQuery, minicluster_jar
from support.stores.store_contract import CHECKS

from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.location import read_location

_numbers = itertools.count()


pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory) -> Iterator[Hdfs]:
    available(minicluster_jar)
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as made:
        yield made


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_hdfs_does_the_same(hdfs: Hdfs, check: Callable[..., None]) -> None:
    location = read_location("option", f"{hdfs.root}/folder-{next(_numbers)}")
    check(open_files("option", location, StorageSettings()), location.text)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_every_row_of_the_fault_matrix_killed_with_hdfs(
    hdfs, shared_brokers, tmp_path: Path, unique
):
    bootstrap = shared_brokers("broker_sim").bootstrap_servers
    play(HdfsQuery(hdfs, tmp_path, bootstrap, unique("hdfs")), DRIVER_ROWS)
