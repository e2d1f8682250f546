"""Turn what a suspended generator will do next into a value: generators with equal values go on
alike.

The value consists of the place in each of the generator's frames and the values of their variables.
The interpreter's stack of a frame is not seen: it holds the iterators of `for` loops, but their
loop variables are seen. Clocks and deadlines are left out on purpose: time does not run out in an
exploration.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from txnlog_kafka.operations.operation_group import OperationGroup
from txnlog_kafka.operations.session import Deadline

CLOCKS = frozenset(
    {"began_ms", "started_ms", "wakes_at_ms", "now_ms", "timeout_ms", "times", "received"}
)
"""Fields and variables with a time or what is left of it, and one that is only read at once."""
WAITS = CLOCKS | {"attempt", "doublings", "failures"}
"""Variables that are left out if they are integers: they only say how long to wait."""
ATOMS = frozenset({int, float, str, bytes, bool, type(None)})
NAMED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.GenericAlias)


def state_of(value: Any, seen: dict[int, tuple[int, Any]] | None = None) -> Any:
    """A hashable value. `seen` has what was met before, by id: it is named by its number."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if seen is None:
        seen = {}
    known = seen.get(id(value))
    if known is not None:
        return "again", known[0]
    seen[id(value)] = len(seen), value
    return kind, *[state_of(part, seen) for part in _parts_by(kind)(value)]


@cache
def _parts_by(kind: type) -> Callable[[Any], Iterable[Any]]:
    """Return the function that splits values of a type into parts, in an order of its own."""
    if issubclass(kind, Deadline):
        return lambda _: ()
    if issubclass(kind, enum.Enum):
        return lambda value: [str(value)]
    if issubclass(kind, OperationGroup):
        return _parts_of_together
    if issubclass(kind, bytearray | memoryview):
        return lambda value: [bytes(value)]
    if issubclass(kind, list | tuple | deque):
        return lambda value: value
    if issubclass(kind, set | frozenset):
        return lambda value: sorted(value, key=repr)
    if issubclass(kind, Mapping):
        return lambda value: [part for item in value.items() for part in item]
    if issubclass(kind, types.GeneratorType):
        return _parts_of_frame
    if issubclass(kind, BaseException):
        return lambda value: [str(value)]
    return _by_object(kind)


def _by_object(kind: type) -> Callable[[Any], Iterable[Any]]:
    if issubclass(kind, types.MethodType):
        return lambda value: [value.__func__.__qualname__, value.__self__]
    if issubclass(kind, NAMED):
        return lambda value: [getattr(value, "__qualname__", repr(value))]
    if is_dataclass(kind):
        names = [
            f.name for f in fields(kind) if f.name not in (WAITS if f.type == "int" else CLOCKS)
        ]
        return lambda value: [getattr(value, name) for name in names]
    if kind.__dictoffset__:
        return lambda value: [part for item in vars(value).items() for part in item]
    return lambda value: [_shown(value)]


def _parts_of_together(together: Any) -> list[Any]:
    """Return the parts with the time for which each still waits, not the time at which it goes
    on."""
    now_ms = together._monotonic_ms()
    waits = [p.wakes_at_ms and p.wakes_at_ms - now_ms for p in together._parts.values()]
    return [together._parts, together._done, waits]


def _shown(value: Any) -> str:
    shown = repr(value)
    if " at 0x" in shown:
        raise TypeError(f"what is the state of a {type(value)}?")
    return shown


def _parts_of_frame(generator: Any) -> list[Any]:
    frame = generator.gi_frame
    if frame is None:
        return []
    known = [
        part
        for name, value in frame.f_locals.items()
        if name not in (WAITS if type(value) is int else CLOCKS)
        for part in (name, value)
    ]
    return [frame.f_code.co_qualname, frame.f_lasti, *known, generator.gi_yieldfrom]
