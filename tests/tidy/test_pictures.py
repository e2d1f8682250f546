"""The pictures of the documents are what their scripts draw."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from tidy.tree import ROOT

SCRIPTS = sorted((ROOT / "docs" / "pictures").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_picture_is_what_its_script_draws(script: Path) -> None:
    drawn = runpy.run_path(str(script))["draw"]()
    written = script.with_suffix(".svg").read_text(encoding="utf-8")
    assert drawn == written, f"run python {script.relative_to(ROOT)}"


def test_every_picture_has_a_script() -> None:
    pictures = {path.stem for path in (ROOT / "docs").rglob("*.svg")}
    assert pictures
    assert pictures == {script.stem for script in SCRIPTS}
