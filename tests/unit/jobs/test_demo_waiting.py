"""The demo is never silent for long: it says what is awaited."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import demo_processes
from jobs.demo_processes import Narrator, SparkJob

STEP_SECONDS = 6.0
LOOKS = 5


class Told(Narrator):
    """The lines, by a clock of the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.job_has_spoken = threading.Event()
        super().__init__(lambda: self.now)

    def say(self, text: str) -> None:
        super().say(text)
        self.lines.append(f"{self.now:.0f} {text}")
        if text.startswith("load |"):
            self.job_has_spoken.set()


def test_a_line_comes_when_there_was_none_for_ten_seconds() -> None:
    told = Told()
    for now, act in (
        (1.0, lambda: told.say("one")),
        (10.9, lambda: told.wait_for("two")),
        (11.0, lambda: told.wait_for("two")),
        (20.0, lambda: told.say("three")),
        (21.0, lambda: told.wait_for("four")),
        (30.0, lambda: told.wait_for("four")),
    ):
        told.now = now
        act()
    assert told.lines == ["1 one", "11 waiting for two", "20 three", "30 waiting for four"]


@pytest.mark.parametrize("speaks", [False, True])
def test_a_job_that_says_nothing_is_waited_for_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speaks: bool
) -> None:
    told, let_go = Told(), tmp_path / "go"
    os.mkfifo(let_go)
    program = tmp_path / "pyspark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{'echo a line' if speaks else ':'}\nread end < {let_go}\n")
    program.chmod(0o755)
    package = SimpleNamespace(__file__=str(tmp_path / "pyspark" / "__init__.py"))
    monkeypatch.setattr(demo_processes, "pyspark", package)
    job = SparkJob([], environment={}, log=tmp_path / "1.log", narrator=told, shown_as="load")
    if speaks:
        assert told.job_has_spoken.wait(60)
    looks = iter(range(1, 1000))

    def watch() -> None:
        told.now += STEP_SECONDS
        if next(looks) == LOOKS:
            let_go.write_text("end\n")

    assert job.wait(300.0, watch) == 0
    what = (
        f"the next line of load (see {job.log})"
        if speaks
        else f"the first line of load, after the start of Spark (see {job.log})"
    )
    waiting = [line for line in told.lines if "waiting" in line]
    assert waiting[:2] == [f"12 waiting for {what}", f"24 waiting for {what}"]
