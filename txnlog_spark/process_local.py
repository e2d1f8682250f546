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
    """What a process has loaded by its first task, plan or commit, and keeps to its end.

    Spark's daemon collects garbage after each of them, and looks at every object of every module:
    40 ms, most of what a small task costs. What is frozen is not looked at again.
    """

    def __init__(self) -> None:
        gc.collect()  # or what is garbage now would be kept too
        gc.freeze()
