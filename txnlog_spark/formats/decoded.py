"""Results of a decoder: a column of values, and the reasons for which values are malformed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoded:
    """A column of decoded values. A malformed value is null and has a problem.

    values: an Arrow array. problems: None if all values are right. Otherwise an array of strings as
    long as `values`: the reason of a malformed value, null for a right one.
    """

    values: Any
    problems: Any = None

    @property
    def first_problem(self) -> tuple[int, str] | None:
        """Return row and text of the first malformed value."""
        if self.problems is None:
            return None
        row = int(np.flatnonzero(self.problems.is_valid().to_numpy(zero_copy_only=False))[0])
        return row, self.problems[row].as_py()


Decode = Callable[[Any], Decoded]
"""Decodes a binary array without null."""

Encode = Callable[[Any], Any]
"""Encodes an Arrow array without null as a binary array."""


def spread(dense: Any, valid: Any) -> Any:
    """Return the elements of `dense` at the places where `valid`, and null at the others."""
    is_valid = valid.to_numpy(zero_copy_only=False)
    at = np.cumsum(is_valid) - 1
    return dense.take(pa.array(at, pa.int64(), mask=~is_valid))


def on_present(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that converts the elements without null, and puts null back.

    So `convert` sees no values below a null struct.
    """

    def converted(array: Any) -> Any:
        if not array.null_count:
            return convert(array)
        return spread(convert(array.drop_null()), array.is_valid())

    return converted


class MalformedText(Exception):
    """A text that is decoded by itself is malformed; the argument says why."""


def decode_each(values: Any, read: Callable[[str], Any], type_: pa.DataType) -> Decoded:
    """Decode texts in UTF-8 one at a time; `read` raises MalformedText."""
    rows: list[Any] = []
    problems: list[str | None] = []
    for value in values.to_pylist():
        row, problem = None, None
        try:
            row = read(value.decode())
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8: {error.reason} at byte {error.start}"
        except MalformedText as error:
            problem = str(error)
        rows.append(row)
        problems.append(problem)
    reasons = pa.array(problems, pa.string()) if any(problems) else None
    return Decoded(pa.array(rows, type_), reasons)


def decode_present(values: Any, decode: Decode) -> Decoded:
    """Decode a binary array that may have null. Null stays null, and is not malformed."""
    if not values.null_count:
        return decode(values)
    valid = values.is_valid()
    found = decode(values.drop_null())
    problems = None if found.problems is None else spread(found.problems, valid)
    return Decoded(spread(found.values, valid), problems)


def joined(parts: list[Decoded]) -> Decoded:
    """Return the parts one after the other; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    values = pa.concat_arrays([part.values for part in parts])
    if all(part.problems is None for part in parts):
        return Decoded(values)
    problems = [
        pa.nulls(len(part.values), pa.string()) if part.problems is None else part.problems
        for part in parts
    ]
    return Decoded(values, pa.concat_arrays(problems))


def with_problems(made: Any, texts: dict[int, str], count: int) -> Decoded:
    """Return the values of `count` rows; `made` are those of the rows without a problem."""
    if not texts:
        return Decoded(made)
    problems = pa.array([texts.get(row) for row in range(count)], pa.string())
    return Decoded(spread(made, problems.is_null()), problems)


class Misfit(Exception):
    """Values cannot be decoded together: at least one has to be decoded by itself.

    `rows` are the rows of such values, None if they are not known.
    """

    def __init__(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__(rows)
        self.rows = rows


def decode_halves(
    values: Any, together: Callable[[Any], Any], one_by_one: Decode, rows_min: int
) -> Decoded:
    """Decode all values together; if that raises Misfit, decode each half by itself.

    So a few odd values among many cost some rounds over the rows beside them. `one_by_one` decodes
    `rows_min` rows or fewer.
    """
    try:
        return Decoded(together(values))
    except Misfit:
        if len(values) <= rows_min:
            return one_by_one(values)
    half = len(values) // 2
    return joined(
        [
            decode_halves(values.slice(0, half), together, one_by_one, rows_min),
            decode_halves(values.slice(half), together, one_by_one, rows_min),
        ]
    )
