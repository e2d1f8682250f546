"""What a decoder of values gives: a column of them, and what is wrong with those it cannot read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoded:
    """A column of decoded values. One that is malformed is null and has a problem.

    values: an Arrow array. problems: None where all values are right, else an array of strings as
    long as `values`: what is wrong with a value, null where it is right.
    """

    values: Any
    problems: Any = None

    @property
    def first_problem(self) -> tuple[int, str] | None:
        """Row and text of the first malformed value."""
        if self.problems is None:
            return None
        row = int(np.flatnonzero(self.problems.is_valid().to_numpy(zero_copy_only=False))[0])
        return row, self.problems[row].as_py()


Decode = Callable[[Any], Decoded]
"""Decodes a binary array without null."""


def spread(dense: Any, valid: Any) -> Any:
    """The elements of `dense` at the places where `valid`, null at the others."""
    is_valid = valid.to_numpy(zero_copy_only=False)
    at = np.cumsum(is_valid) - 1
    return dense.take(pa.array(at, pa.int64(), mask=~is_valid))


def on_present(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Convert the elements that are not null alone, so that nothing below stands for a null one."""

    def converted(array: Any) -> Any:
        if not array.null_count:
            return convert(array)
        return spread(convert(array.drop_null()), array.is_valid())

    return converted


def decode_present(values: Any, decode: Decode) -> Decoded:
    """Decode a binary array that may have null, which stays null and is not malformed."""
    if not values.null_count:
        return decode(values)
    valid = values.is_valid()
    found = decode(values.drop_null())
    problems = None if found.problems is None else spread(found.problems, valid)
    return Decoded(spread(found.values, valid), problems)


def joined(parts: list[Decoded]) -> Decoded:
    """The parts one after the other; there is at least one."""
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


class Misfit(Exception):
    """Values cannot be decoded together: at least one of them has to be looked at by itself.

    `rows` are those, as it seems; None where it may be any.
    """

    def __init__(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__(rows)
        self.rows = rows


def decode_halves(
    values: Any, together: Callable[[Any], Any], one_by_one: Decode, rows_min: int
) -> Decoded:
    """Decode all values together, and where that raises Misfit each half of them by itself.

    So the cost of a few odd values among many is some rounds over the rows beside them. Of
    `rows_min` rows or fewer it is `one_by_one` that has the last word.
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
