"""Folders of fetched programs: the first run completes them for all later runs."""

from __future__ import annotations

import os
from pathlib import Path

from support.harness.maven import completed_once


def test_a_folder_is_completed_once_and_its_mark_keeps_its_time(tmp_path: Path) -> None:
    """Archives of classes are named after this time: a new one would cost each JVM its start."""
    folder = tmp_path / "cache" / "jars"
    with completed_once(folder) as is_first:
        assert is_first
    os.utime(folder / "complete", (1, 1))
    with completed_once(folder) as is_first:
        assert not is_first
    assert (folder / "complete").stat().st_mtime == 1
