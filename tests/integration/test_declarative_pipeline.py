"""Spark Declarative Pipelines: a source and a sink of ours, killed and run again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.spark.spark_copy import CopyQuery, conf_arguments
from support.spark.spark_home import SPARK_HOME

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

DEFINITIONS = Path(__file__).resolve().parents[1] / "support" / "spark" / "copy_pipeline.py"
SPEC = """\
name: copy
storage: file://{folder}/storage
libraries:
  - glob:
      include: definitions/**
"""


class CopyPipeline(CopyQuery):
    """The copy query as the one flow of a pipeline, which names the checkpoint itself."""

    def __init__(self, folder: Path, bootstrap: str, name: str) -> None:
        super().__init__(folder, bootstrap, name)
        self.checkpoint = folder / "storage" / "_checkpoints" / "copied" / "copy" / "0"
        (folder / "definitions").mkdir()
        shutil.copy(DEFINITIONS, folder / "definitions")
        (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))

    def command(self, settings: dict[str, str]) -> list[str]:
        write = self.all_write_options
        del write["checkpointLocation"]
        self.environment["COPY_PIPELINE"] = json.dumps(
            {"read": self.all_read_options, "write": write}
        )
        return [str(SPARK_HOME / "bin" / "spark-pipelines"), "run", *conf_arguments(settings)]


def test_a_pipeline_that_was_killed_behind_the_commit_gives_each_row_once(
    shared_brokers: Callable, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    pipeline = CopyPipeline(
        tmp_path / "pipeline", shared_brokers("broker_sim").bootstrap_servers, unique("pipeline")
    )
    pipeline.feed(3 * pipeline.batch_size)
    killed = "end_txn:after:kill-driver@1"
    run = pipeline.start(killed)
    run.wait_fired(killed)
    run.kill()  # the client waits for its server, which was killed
    pipeline.feed(pipeline.batch_size)
    ended = pipeline.run()
    assert ended.code == 0, ended.stderr[-3000:]
    pipeline.check_exactly_once()
    assert set(pipeline.output("read_uncommitted").values()) == {1}, "a committed batch came again"
