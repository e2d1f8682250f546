"""Count the objects that are alive in a Python process, by type.

The count includes everything that the garbage collector knows and everything reachable from it, so
a name in a set counts as well as a connection in a list. A container also counts its places,
because small numbers and names are shared.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from support.brokers.probe import wait_until

PLACES = "places in containers"
SITE = Path(__file__).parents[1] / "process_site"
FOLDER_VARIABLE = "TXNLOG_OBJECT_COUNTS"
_CONTAINERS = (dict, list, set, deque)
_NOT_COUNTED = (type, ModuleType, int, float)
"""Types that are not counted: code, and numbers, each of which has a place in a counted object."""


def count_objects(roots: Iterable[Any], leave_out: Iterable[Any] = ()) -> Counter[str]:
    """Count the objects of each type that are reachable from these roots."""
    found: Counter[str] = Counter()
    seen = {id(each) for each in leave_out}
    waiting = [each for each in roots if id(each) not in seen]
    seen.update(map(id, waiting))
    while waiting:
        each = waiting.pop()
        if isinstance(each, _NOT_COUNTED):
            continue
        found[f"{type(each).__module__}.{type(each).__qualname__}"] += 1
        if isinstance(each, _CONTAINERS):
            found[PLACES] += len(each)
        for other in _parts(each):
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
    return found


def _parts(each: Any) -> list[Any]:
    if isinstance(each, FunctionType):  # not its module
        return [each.__closure__, each.__defaults__, each.__kwdefaults__]
    return gc.get_referents(each)


def grown(before: Counter[str], after: Counter[str], least: int) -> dict[str, int]:
    """Return the types that have at least `least` more objects, the fastest growing first."""
    more = {kind: count - before[kind] for kind, count in after.items()}
    return {
        kind: more[kind] for kind in sorted(more, key=lambda k: -more[k]) if more[kind] >= least
    }


def write_object_counts(folder: Path) -> None:
    """Write the counts of this whole process into a file with its process id."""
    gc.collect()
    text = json.dumps(count_objects(gc.get_objects()))
    partial = folder / f"{os.getpid()}.partial"
    partial.write_text(text)
    partial.rename(folder / str(os.getpid()))


def ask_for_object_counts(pid: int, folder: Path) -> Counter[str]:
    """Return the counts of a process that has SITE on its path, and the folder in its
    environment."""
    path = folder / str(pid)
    os.kill(pid, signal.SIGUSR1)
    wait_until(path.exists, f"the object counts of process {pid}")
    held: Counter[str] = Counter(json.loads(path.read_text()))
    path.unlink()
    return held
