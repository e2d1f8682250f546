"""A secret in each place that takes one, right and wrong, and no trace of any of them after."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from support.harness.maven import Unavailable
from support.spark.planted_secrets import PLACES, Seen, run_planted
from support.spark.planted_world import SECRETS, USER
from support.stores.azurite import azurite
from support.stores.s3a import s3a_jars

T = TypeVar("T")

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

# fmt: off
ALSO_THERE = {
    "log": (
        b"DEBUG txnlog_spark", b"INFO txnlog_spark", b" INFO ",
        b"DEBUG kafka.protocol: heard on the driver", b"DEBUG kafka.protocol: heard on an executor",
    ),
    "events": (USER.encode(), b"SparkListenerApplicationEnd"),
    "checkpoints": (b"planted-in",),
    "files": (b"PRIVATE KEY",),
    "processes": (b"txnlog_spark.staging.server", b"broker_sim", b"org.apache.spark"),
    "explained": (b"planted-in", b"from_avro"),
    "progress": (b"numInputRows",),
    "errors": (b"TXNLOG_SECURITY", b"registry", b"txnlog.fs.azure", b"txnlog.fs.s3a"),
}
# fmt: on
"""Text without secrets that each place must contain, which proves that the test looks at the place.
"""


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="txn") as folder:
        yield run_planted(Path(folder), has_azure=bool(had(azurite)), s3a=had(s3a_jars) or [])


def had(fetch: Callable[[], T]) -> T | None:
    """Return the result of `fetch`, or None where it is unavailable; in CI that is a failure."""
    try:
        return fetch()
    except Unavailable:
        if os.environ.get("CI") == "true":
            raise
        return None


def test_right_secrets_let_in_wrong_ones_fail_and_every_place_is_looked_at(seen: Seen) -> None:
    assert seen.unexpected == ""
    for place, expected in ALSO_THERE.items():
        everything = b"\n".join(seen.texts[place].values())
        assert [text for text in expected if text not in everything] == [], place
    if "Azure account key" in seen.marks:
        assert b"INFO azure.core" in seen.texts["log"]["job/log"]


@pytest.mark.invariant(76)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_not_to_be_found(seen: Seen, name: str, place: str) -> None:
    if name not in seen.marks:
        pytest.skip("Azure's emulator is not to be had")
    assert seen.marks[name]
    found = {mark: seen.having(mark, place) for mark in seen.marks[name]}
    assert [where for where in found.items() if where[1]] == []


@pytest.mark.parametrize("place", PLACES)
def test_the_staging_servers_token_is_not_to_be_found(seen: Seen, place: str) -> None:
    assert seen.token
    assert seen.having(seen.token, place) == []
