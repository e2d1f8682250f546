"""Lines for the driver's console: when a worker shows them, and how."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark import console

ROOT = Path(__file__).resolve().parents[3]
TELL = "from txnlog_spark.console import tell; tell('first'); tell('second')"
P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)
TARGET = {P0: 10, P1: 5}


def shown(code: str, **variables: str) -> list[str]:
    """Return the lines on the standard error of a process without configured logging."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()


def test_a_process_without_logging_shows_the_lines_as_sparks_own_have_them() -> None:
    first, second = shown(TELL)
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO txnlog_spark: first", first)
    assert second.endswith("second")


@pytest.mark.parametrize("level", ["warning", "ERROR"])
def test_the_environment_switches_the_lines_off(level: str) -> None:
    assert shown(TELL, LOG_LEVEL_TXNLOG=level) == []


def test_a_level_that_is_none_ends_no_commit() -> None:
    assert len(shown(TELL, LOG_LEVEL_TXNLOG="loud")) == 2


def test_logging_that_somebody_has_configured_is_left_as_it_is() -> None:
    code = "import logging; logging.basicConfig(format='own %(message)s', level={}); " + TELL
    assert shown(code.format(20)) == ["own first", "own second"]
    assert shown(code.format(30)) == []


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(0.4, "0 ms"), (9_999, "9999 ms"), (12_345, "12.3 s")]
)
def test_long_times_are_in_seconds(duration_ms: float, text: str) -> None:
    assert console.lasting(duration_ms) == text


def told(caplog: pytest.LogCaptureFixture, *starts: tuple[int, int], high: int = 10) -> list[str]:
    """Lines of a run whose source is asked for batches from these positions on."""
    run = console.SourceRun()
    latest = {"in": {"0": high, "1": 5}}
    with caplog.at_level(logging.INFO):
        for first, second in starts:
            run.look({"in": {"0": first, "1": second}}, TARGET, latest)
    return [re.sub(r"\d+ ms", "N ms", record.getMessage()) for record in caplog.records]


def test_a_run_is_told_once_when_all_of_it_is_done(caplog) -> None:
    line = "in is done: 11 offsets in N ms, lag 0 when the run began"
    begun = "in: 11 offsets to read, the first batch starts"
    assert told(caplog, (2, 2), (8, 5), (10, 5), (10, 5)) == [begun, line]


def test_a_run_that_has_not_reached_its_end_is_not_told(caplog) -> None:
    assert told(caplog, (2, 2), (10, 4)) == ["in: 11 offsets to read, the first batch starts"]


def test_a_run_without_new_records_says_so_and_what_is_behind_open_transactions(caplog) -> None:
    assert told(caplog, (10, 5), high=13) == [
        "in: 3 offsets to read, the first batch starts",
        "in is done: nothing new, lag 3 when the run began",
    ]


def test_a_query_that_goes_on_has_no_end(caplog) -> None:
    with caplog.at_level(logging.INFO):
        console.SourceRun().look({"in": {"0": 10, "1": 5}}, None, {"in": {"0": 10, "1": 5}})
    assert [record.getMessage() for record in caplog.records] == ["in: nothing to read yet"]
