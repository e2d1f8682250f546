"""Connections to the staging server that have proved nothing: of many tasks at once, of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.staging_home import staging_home
from support.task_wave import task_wave

from txnlog_spark.staging.address import StagingSettings, ensure_server

SILENT = 530
"""More than may prove the token at once."""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with staging_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def settings(home: Path) -> StagingSettings:
    """A server of this test alone; it is ended with the test."""
    return StagingSettings(bind_address="127.0.0.1", directory=str(home / "spool"))


def test_more_tasks_than_may_prove_the_token_at_once_wait_and_are_all_stored(
    settings: StagingSettings,
) -> None:
    assert task_wave(ensure_server(settings), 1_000) == {"STORED": 1_000}


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"])
def test_silent_connections_of_a_stranger_keep_no_task_from_staging(
    settings: StagingSettings, source: str
) -> None:
    """Not even of the stranger's own address: those of it wait longer."""
    wave = task_wave(ensure_server(settings), 40, silent=(SILENT, source))
    assert wave == {"STORED": 40}
