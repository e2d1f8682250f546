"""What a process keeps of its own: Spark builds and pickles everything else again and again.

One object of each kind, made when it is first asked for. A forked child begins with none, as Spark
forks its workers from a daemon: it must not use its parent's connections.
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
    """This process's object of a class, which is made without arguments."""
    found: T | None = _kept.get(kind)
    # Of two threads that make one at the same time, both get the first.
    return found if found is not None else _kept.setdefault(kind, kind())


class Frozen:
    """What a process of Spark's has loaded when it first comes here, and keeps to its end.

    A collection of garbage looks at every object of every module: 12 ms, twice while a commit's
    modules are imported, and 40 ms after each task, as Spark's daemon asks for it, most of what a
    small one costs. What is frozen is not looked at again. It is done before a process has worked,
    so there is no garbage yet that would be kept too.
    """

    def __init__(self) -> None:
        gc.freeze()
