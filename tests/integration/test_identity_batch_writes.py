"""One txnAppId and one txnVersion, several targets: each target counts by itself, as in Delta Lake.

Delta keeps (txnAppId, txnVersion) in each table, and its own foreachBatch example writes two tables
with one of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as sf
from support.clients.librdkafka import create_topic, read_topic, values_of

pytestmark = pytest.mark.live


@pytest.fixture
def pipe(both_pipe) -> Any:
    """On both brokers."""
    return both_pipe


@pytest.fixture
def second(pipe, unique: Callable[[str], str]) -> str:
    """Another output."""
    return create_topic(pipe.bootstrap, unique("second"), 1)


def written(pipe: Any, topic: str) -> list[str]:
    """With what was written and aborted."""
    return values_of(read_topic(pipe.bootstrap, topic, isolation="read_uncommitted"))


def test_rows_that_name_their_topics_are_a_target_of_their_own(pipe, second: str) -> None:
    named = {"txnAppId": pipe.group, "txnVersion": 4}
    pipe.save(pipe.rows(["by option"]), **named)
    rows = pipe.rows([pipe.output, second]).withColumn("topic", sf.col("value"))
    for _ in range(2):
        pipe.save(rows, topic=None, **named)
    pipe.save(pipe.rows(["by option"]), **named)
    assert written(pipe, pipe.output) == sorted(["by option", pipe.output])
    assert written(pipe, second) == [second]
