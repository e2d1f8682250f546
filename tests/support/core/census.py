"""What a Python process holds: the objects that are alive in it, by type.

Everything that the garbage collector knows is taken with all that hangs on it, so that a name in a
set is counted as well as a connection in a list. A container counts its places besides, for small
numbers and names are shared.
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
FOLDER_VARIABLE = "TXNLOG_CENSUS"
_CONTAINERS = (dict, list, set, deque)
_NOT_COUNTED = (type, ModuleType, int, float)
"""Code; and numbers, each of which has a place in something that is counted."""


def census(roots: Iterable[Any], leave_out: Iterable[Any] = ()) -> Counter[str]:
    """How many objects of each type there are in all that hangs on these."""
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
    """What there are at least so many more of; the most of them first."""
    more = {kind: count - before[kind] for kind, count in after.items()}
    return {
        kind: more[kind] for kind in sorted(more, key=lambda k: -more[k]) if more[kind] >= least
    }


def write_census(folder: Path) -> None:
    """Of this whole process, into a file that has its number."""
    gc.collect()
    text = json.dumps(census(gc.get_objects()))
    partial = folder / f"{os.getpid()}.partial"
    partial.write_text(text)
    partial.rename(folder / str(os.getpid()))


def ask_for_census(pid: int, folder: Path) -> Counter[str]:
    """Of a process that has SITE on its path, and the folder in its environment."""
    path = folder / str(pid)
    os.kill(pid, signal.SIGUSR1)
    wait_until(path.exists, f"the census of process {pid}")
    held: Counter[str] = Counter(json.loads(path.read_text()))
    path.unlink()
    return held
