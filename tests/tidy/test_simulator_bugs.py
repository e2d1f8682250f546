"""Each seed that showed a bug runs with the tests, and each that runs is explained."""

from __future__ import annotations

import re

from tidy.tree import ROOT

HEADING = re.compile(r"^### ([a-z_]+) (\d+(?:, \d+)*)((?: [\w.]+=[\w.]+)*)$", re.MULTILINE)
LINE = re.compile(r"^([a-z_]+) (\d+)((?: [\w.]+=[\w.]+)*) ", re.MULTILINE)


def explained(document: str) -> set[tuple[str, str, str]]:
    """(scenario, seed, fields) of the headings."""
    return {
        (name, seed, fields)
        for name, seeds, fields in HEADING.findall(document)
        for seed in seeds.split(", ")
    }


def test_the_document_of_bugs_and_the_list_of_seeds_name_the_same() -> None:
    document = (ROOT / "docs" / "internals" / "simulator-bugs.md").read_text(encoding="utf-8")
    listed = (ROOT / "tests" / "sim" / "regression_seeds.txt").read_text(encoding="utf-8")
    run = [line for line in listed.splitlines() if not line.startswith("#")]
    found = LINE.findall(listed)
    assert len(found) == len(run)
    assert explained(document) == set(found)


def test_a_heading_names_its_seeds_and_fields() -> None:
    headings = "### a_b 1, 23 a.x=0.2 y=true\n\nc\n\n### random 7\n\n### No seed\n"
    assert explained(headings) == {
        ("a_b", "1", " a.x=0.2 y=true"), ("a_b", "23", " a.x=0.2 y=true"), ("random", "7", ""),
    }  # fmt: skip
