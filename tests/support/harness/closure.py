"""The files of this repository that a test file consists of: it, and all that it imports.

A module that is imported by a name in a string is not seen, and a program that a test starts is not
either. The connector is imported by Spark, and `broker_sim` is started as a process.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TESTS = REPOSITORY / "tests"
ELSEWHERE = {
    TESTS / "support" / f"{name}.py"
    for name in (
        "spark/connector",
        "harness/closure",
        "harness/costs",
        "harness/groups",
        "harness/recordings",
        "brokers/sim_broker",
    )
}
"""Modules that `conftest.py` imports and that take no part in a recorded run."""


def closure_of(path: Path, *, conftests: bool = True) -> frozenset[Path]:
    """Return a test file, with its conftest files, and all that these import, directly or not."""
    found: set[Path] = set()
    waiting = [path, *_conftests(path)] if conftests else [path]
    while waiting:
        path = waiting.pop()
        if path not in found and path not in ELSEWHERE:
            found.add(path)
            waiting += (file for name in imports_of(path) if (file := _file_of(name)) is not None)
    return frozenset(found)


def _conftests(path: Path) -> Iterator[Path]:
    for folder in path.parents:
        if (folder / "conftest.py").exists():
            yield folder / "conftest.py"
        if folder == TESTS:
            return


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, wherever in it; for `from a import b` a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(found)


@functools.cache
def _file_of(module: str) -> Path | None:
    """Return a module's file, None if it is not one of the repository."""
    for root in (TESTS, REPOSITORY):
        place = root.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


@functools.cache
def code_of(path: Path) -> bytes:
    """Return what runs of a file: Python without docstrings and lines of comment, else all bytes.

    A better sentence changes no answer of Apache Kafka, so it makes no recording stale. The result
    is kept: most files are in the closure of many tests, and a run asks for all before it begins.
    """
    data = path.read_bytes()
    if path.suffix != ".py":
        return data
    lines = data.decode().splitlines()
    dropped = {
        number
        for node in ast.walk(ast.parse(data))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            dropped.add(token.start[0])
    return "\n".join(line for at, line in enumerate(lines, 1) if at not in dropped).encode()
