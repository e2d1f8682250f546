"""Comparison of an output with the reference's: pure functions on rows.

A row is a mapping of columns, or a record of a topic. Two outputs are compared as multisets, and
the rows of some keys in their order, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

LOST, DOUBLED, CHANGED, REORDERED = "lost", "doubled", "changed", "reordered"


@dataclass(frozen=True, slots=True)
class Row:
    """Row of an output: what it says, the key that orders it, and where it was found."""

    columns: Mapping[str, Any]
    key: Hashable = None
    origin: str = ""

    def without(self, ignored: frozenset[str]) -> Hashable:
        """Return what is compared, without the columns that are ignored."""
        return tuple(
            (name, frozen(value))
            for name, value in sorted(self.columns.items())
            if name not in ignored
        )

    def __str__(self) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in self.columns.items())
        return text if len(text) < 200 else text[:197] + "..."


@dataclass(frozen=True, slots=True)
class Difference:
    """Counts of how an output differs from the reference's, with the first row that does."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows by LOST, DOUBLED, CHANGED and REORDERED; without what is zero."""
    first: str = ""
    columns: frozenset[str] = frozenset()
    """Columns by which changed rows differ."""

    def __bool__(self) -> bool:
        return bool(self.counts)


def frozen(value: Any) -> Hashable:
    """Return a value that can be hashed, and equals the same value of the same type alone: 1 is
    another one than 1.0 and than true; NaN equals itself."""
    if isinstance(value, Mapping):
        parts = ((repr(name), frozen(each)) for name, each in value.items())
        return tuple(sorted(parts, key=itemgetter(0)))
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, bool | int | float):
        return repr(value), type(value)
    return value  # type: ignore[no-any-return]


def record_row(key: bytes | None, value: bytes | None, headers: Iterable[Any], at: str) -> Row:
    """Return the row of a record: a JSON object by its fields, any other value as one column."""
    columns: dict[str, Any] = {"key": key}
    read = _json_object(value)
    if read is None:
        columns["value"] = value
    else:
        columns |= {f"value.{name}": each for name, each in read.items()}
    if headers:
        columns["headers"] = [tuple(each) for each in headers]
    return Row(columns, key, at)


def _json_object(value: bytes | None) -> dict[str, Any] | None:
    if value is None or not value.startswith(b"{"):
        return None
    try:
        read = json.loads(value)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def compare(
    reference: Sequence[Row],
    seen: Sequence[Row],
    ignored: frozenset[str] = frozenset(),
    *,
    ordered: Collection[Hashable] = (),
) -> Difference:
    """Return how `seen` differs from the reference; false if it does not. `ordered` has the keys
    whose rows have an order."""
    left = _by_content(reference, ignored)
    doubled: list[Row] = []
    strange: list[Row] = []
    for row in seen:
        same = left.get(row.without(ignored))
        if same:
            same.pop()
        else:
            (strange if same is None else doubled).append(row)
    changed, lost = _paired([row for rows in left.values() for row in rows], strange)
    if not (doubled or strange or lost):
        return _order_difference(reference, seen, ignored, ordered)
    counts = {LOST: len(lost), DOUBLED: len(doubled), CHANGED: len(strange)}
    if doubled:
        first = f"{doubled[0]} is there again at {doubled[0].origin}"
    elif lost:
        first = f"{lost[0]} is missing (reference: {lost[0].origin})"
    else:
        first = _changed_text(*changed[0]) if changed else f"{strange[0]}, at {strange[0].origin}"
    columns = frozenset(name for old, new in changed for name in _different_columns(old, new))
    return Difference({name: count for name, count in counts.items() if count}, first, columns)


def _by_content(rows: Sequence[Row], ignored: frozenset[str]) -> dict[Hashable, list[Row]]:
    found: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.without(ignored)].append(row)
    return dict(found)


def _paired(missing: list[Row], strange: list[Row]) -> tuple[list[tuple[Row, Row]], list[Row]]:
    """Return each row that changed, as it should be and as it is, and the rows that are lost.

    Rows of a key belong together; without a key, those that differ in the fewest columns.
    """
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in missing:
        by_key[frozen(row.key)].append(row)
    pairs = []
    for new in strange:
        candidates = by_key.get(frozen(new.key), [])
        if candidates:
            old = min(candidates[:50], key=lambda row: len(_different_columns(row, new)))
            candidates.remove(old)
            pairs.append((old, new))
    return pairs, [row for rows in by_key.values() for row in rows]


def _different_columns(old: Row, new: Row) -> list[str]:
    names = [*old.columns, *(name for name in new.columns if name not in old.columns)]
    return [
        name for name in names if frozen(old.columns.get(name)) != frozen(new.columns.get(name))
    ]


def _changed_text(old: Row, new: Row) -> str:
    parts = [
        f"{name} was {old.columns.get(name)!r} and is {new.columns.get(name)!r}"
        for name in _different_columns(old, new)
    ]
    return f"{'; '.join(parts)}, at {new.origin}"


def _order_difference(
    reference: Sequence[Row],
    seen: Sequence[Row],
    ignored: frozenset[str],
    ordered: Collection[Hashable],
) -> Difference:
    """Return the difference in the order of the rows of each key that has one."""

    def by_key(rows: Sequence[Row]) -> dict[Hashable, list[Row]]:
        found: dict[Hashable, list[Row]] = defaultdict(list)
        for row in rows:
            if row.key in ordered:
                found[frozen(row.key)].append(row)
        return found

    wanted, count, first = by_key(reference), 0, ""
    for key, rows in by_key(seen).items():
        for old, new in zip(wanted[key], rows, strict=True):
            if old.without(ignored) != new.without(ignored):
                count += 1
                first = first or f"key {new.key!r}: {new} came where {old} belongs, at {new.origin}"
    return Difference({REORDERED: count} if count else {}, first)
