"""Modules of an archive: compiled once in all, and read without its directory for each package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from txnlog_python import bytecode

ROOT = Path(bytecode.__file__).parents[1]
PROBE = """
import sys, zipimport
from pathlib import Path
archive, folder, root = sys.argv[1:]
sys.path[:0] = [archive, root]
from txnlog_python.bytecode import kept_bytecode

compiled = []
sys.addaudithook(lambda event, given: event == "compile" and compiled.append(str(given[1])))
with kept_bytecode(Path(folder)):
    from boxed.inner import value
print(value.VALUE, value.__file__.startswith(archive), value.__loader__.__class__.__name__)
print(len([name for name in compiled if name.startswith(archive)]))

from txnlog_python.server import forget_parts_of_archives
forget_parts_of_archives()
reads, read = [], zipimport._read_directory
zipimport._read_directory = lambda path: reads.append(path) or read(path)
import importlib
importlib.invalidate_caches()
from boxed.inner import other
print(other.VALUE, len(reads))
"""


def make_archive(path: Path, value: int) -> None:
    with ZipFile(path, "w") as archive:
        for name in ("boxed/__init__", "boxed/inner/__init__"):
            archive.writestr(f"{name}.py", "")
        for name in ("value", "other"):
            archive.writestr(f"boxed/inner/{name}.py", f"VALUE = {value}")


def found(archive: Path, folder: Path, *options: str) -> list[str]:
    command = [sys.executable, *options, "-c", PROBE, str(archive), str(folder), str(ROOT)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    made = tmp_path / "boxed.zip"
    make_archive(made, 7)
    return made


def test_a_second_process_compiles_nothing_and_finds_the_same(
    archive: Path, tmp_path: Path
) -> None:
    once = found(archive, tmp_path)
    # Python itself compiles each of the three modules twice.
    assert once == ["7 True zipimporter", "3", "7 1"]
    assert found(archive, tmp_path) == [once[0], "0", once[2]]


def test_a_changed_archive_is_compiled_again(archive: Path, tmp_path: Path) -> None:
    found(archive, tmp_path)
    before = archive.stat()
    make_archive(archive, 8)
    assert archive.stat().st_size == before.st_size
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert found(archive, tmp_path) == ["8 True zipimporter", "3", "8 1"]


def test_a_python_with_other_optimization_has_bytecode_of_its_own(
    archive: Path, tmp_path: Path
) -> None:
    found(archive, tmp_path)
    assert found(archive, tmp_path, "-O")[1] == "3"
    assert found(archive, tmp_path)[1] == "0"


@pytest.mark.parametrize("left", [0, 1, 40, -1])
def test_a_file_of_which_a_loss_of_power_left_a_part_is_written_again(
    archive: Path, tmp_path: Path, left: int
) -> None:
    found(archive, tmp_path)
    (kept,) = tmp_path.glob("modules-*")
    kept.write_bytes(kept.read_bytes()[:left])
    assert found(archive, tmp_path)[1] == "3"
    kept.write_bytes(bytes(kept.stat().st_size))
    assert found(archive, tmp_path)[1] == "3"
    assert found(archive, tmp_path)[1] == "0"
