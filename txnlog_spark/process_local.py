"""Objects that a process keeps; Spark builds and pickles everything else again and again.

There is one object of each kind, made when it is first needed. A forked child begins without
objects, because it must not use its parent's connections: Spark forks its workers from a daemon.
The results of pure functions are not here: `functools` keeps them, and a child may have them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_kept: dict[Callable[[], Any], Any] = {}
os.register_at_fork(after_in_child=_kept.clear)


def process_local(kind: Callable[[], T]) -> T:
    """Return this process's object of a class, which is made without arguments."""
    found: T | None = _kept.get(kind)
    # If two threads make an object at the same time, both get the first object.
    return found if found is not None else _kept.setdefault(kind, kind())


class Frozen:
    """Freezes the objects that a Spark process has loaded when it first comes here, until its end.

    A garbage collection looks at every object of every module. This takes 12 ms, twice while a
    commit's modules are imported, and 40 ms after each task, because Spark's daemon asks for a
    collection: most of the time of a small task. Frozen objects are not looked at again. The freeze
    comes before the process has worked, so no garbage is frozen with them.
    """

    def __init__(self) -> None:
        gc.freeze()
