"""`python -m txnlog_spark explain`: cause and remedy of an error, without the documentation.

The docstring of an error's class is the only source of both, and docs/errors.md is generated from
it. The docstrings are read from the source files, because some packages cannot be imported without
their extra, and `python -OO` drops docstrings.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

PACKAGES = ("txnlog_kafka", "txnlog_spark")
MODULE = "errors.py"
"""File name of the modules with errors, in a package and in its subpackages."""
_NAME = re.compile(r"\bTXNLOG_\w+(?:\.\w+)*", re.IGNORECASE)
_SHOWN_MAX = 60
"""Longest part of a text without a name that the refusal repeats, in characters."""


class UnknownError(ValueError):
    """The text does not name an error of the connector."""


class ErrorText(NamedTuple):
    """Texts of one error."""

    name: str
    cause: str
    remedy: str
    class_name: str
    """Name of the class, with its module."""


def error_texts() -> dict[str, ErrorText]:
    """Return the texts of every error, by its name and sorted."""
    found = {}
    for package in PACKAGES:
        root = resources.files(package)
        folders = {package: root}
        folders |= {f"{package}.{each.name}": each for each in root.iterdir() if each.is_dir()}
        for name, folder in folders.items():
            module = folder / MODULE
            if module.is_file():
                texts = texts_of(f"{name}.errors", module.read_text(encoding="utf-8"))
                found.update({each.name: each for each in texts})
    return dict(sorted(found.items()))


def texts_of(module: str, source: str) -> Iterator[ErrorText]:
    """Yield the texts of a module's classes that have a `condition`.

    Raises ValueError for a class without a remedy in its docstring.
    """
    classes = (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef))
    for each in classes:
        condition = _condition(each)
        if condition is not None:
            cause, found, remedy = (ast.get_docstring(each) or "").partition("\n\nRemedy: ")
            if not found:
                raise ValueError(f"{each.name} has no remedy in its docstring")
            remedy = remedy[0].upper() + remedy[1:]
            yield ErrorText(condition, cause, remedy, f"{module}.{each.name}")


def _condition(error: ast.ClassDef) -> str | None:
    for line in error.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            names = [target.id for target in line.targets if isinstance(target, ast.Name)]
            if names == ["condition"]:
                return str(line.value.value)
    return None


def explain(text: str) -> str:
    """Return cause and remedy of the error that a text names; for an empty text, list all names.

    The text is a name in any case, with or without brackets, or everything that Spark printed: then
    the first known name counts. Raises UnknownError.
    """
    known = error_texts()
    if not text.strip():
        width = max(map(len, known)) + 2
        return "".join(f"{name:{width}}{_first_sentence(known[name])}\n" for name in known)
    name = _name_in(text, known)
    paragraphs = [name, f"Cause. {known[name].cause}", f"Remedy. {known[name].remedy}"]
    if special := [f"  {other}" for other in known if other.startswith(f"{name}.")]:
        paragraphs.append("\n".join(["Special cases:", *special]))
    return "\n\n".join(paragraphs) + "\n"


def _name_in(text: str, known: dict[str, ErrorText]) -> str:
    named: list[str] = [name.upper() for name in _NAME.findall(text)]
    for name in named:
        if name in known:
            return name
    asked = named[0] if named else text.strip().strip("[]")[:_SHOWN_MAX]
    near = difflib.get_close_matches(asked.upper(), known, n=1)
    advice = f"did you mean {near[0]}?" if near else "`explain` without a name lists all"
    raise UnknownError(f"no error is named {asked!r}: {advice}")


def _first_sentence(text: ErrorText) -> str:
    """Return the first sentence of the cause, on one line."""
    return re.split(r"(?<=\.)\s", text.cause, maxsplit=1)[0].replace("\n", " ")
