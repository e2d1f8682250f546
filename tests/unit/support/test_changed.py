"""`make check` runs the tests of what has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed import pure_tests_of


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], []),
        (["docs/a.md", "setup.cfg"], []),
        (["txnlog_spark/commit/judgement.py"], ["tests/unit/txnlog_spark/commit"]),
        (["txnlog_kafka/wire/schemas/FetchRequest.json"], ["tests/unit/txnlog_kafka/wire"]),
        (["txnlog_spark/datasource.py", "txnlog_spark/sink/task.py"], ["tests/unit/txnlog_spark"]),
        (["tests/property/test_codec_twin.py"], ["tests/property/test_codec_twin.py"]),
        (["tests/integration/test_spark_sql.py", "tests/unit/support/no_test.py"], []),
        (["broker_sim/server/process.py"], []),
        (["simulation/world.py"], []),
    ],
)
def test_a_change_has_the_tests_of_its_folder(changed: list[str], expected: list[str]) -> None:
    assert pure_tests_of(changed) == sorted(["tests/tidy", *expected])


def test_a_test_that_was_deleted_is_not_run(tmp_path: Path) -> None:
    assert pure_tests_of(["tests/unit/test_gone.py"], tmp_path) == ["tests/tidy"]
