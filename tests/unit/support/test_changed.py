"""Tests that `make check` runs for a change."""

from __future__ import annotations

import pytest
from changed import affordable, concerned, pure_closures

CLOSURES = {
    "tests/unit/test_a.py": {"tests/unit/test_a.py", "product/a.py", "product/wire/schema.py"},
    "tests/unit/test_b.py": {"tests/unit/test_b.py", "product/b.py"},
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["product/a.py"], {"tests/unit/test_a.py"}),
        (
            ["product/b.py", "tests/unit/test_a.py"],
            {"tests/unit/test_a.py", "tests/unit/test_b.py"},
        ),
        (["product/wire/schemas/Fetch.json"], {"tests/unit/test_a.py"}),
        (["product/wire/table.yml"], {"tests/unit/test_a.py", "tests/unit/test_b.py"}),
        (["docs/page.md"], set()),
        (["product/gone.py"], set()),
    ],
)
def test_a_change_concerns_the_tests_that_import_what_has_changed(
    changed: list[str], expected: set[str]
) -> None:
    assert concerned(changed, CLOSURES) == expected


def test_the_cheapest_tests_run_until_the_budget_is_spent() -> None:
    costs = {"a": 3.0, "b": 1.0, "c": 0.5}
    assert affordable(["a", "b", "c", "new"], costs, 2.0) == (["c", "b"], ["a", "new"])


def test_a_test_of_another_room_is_found_by_its_imports() -> None:
    closures = pure_closures()
    found = concerned(["txnlog_kafka/wire/varint.py"], closures)
    assert "tests/property/test_codec_twin.py" in found
    assert "tests/unit/txnlog_kafka/wire/test_varint.py" in found
    assert len(found) < len(closures)
