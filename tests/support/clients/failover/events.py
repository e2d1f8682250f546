"""Print a JSON line for each thing that a client program of this folder saw.

`at` is the time in ms since 1970, `work` is one of WORKS. Then comes `ok` with the values that are
acknowledged, committed or read, or `error` with a name, or `anew`: the client was made again,
because the former one could do no more. The program's arguments are, in this order, the bootstrap
servers, the topics of "produce" and "transact", a group and a transactional id. The program ends
when its stdin does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence

WORKS = ("produce", "transact", "consume", "group")
PAUSE_S = 0.05
"""Between two records or transactions."""
DELIVERY_TIMEOUT_MS = 60_000
TRANSACTION_TIMEOUT_MS = 60_000

over = threading.Event()
"""Set when stdin has ended."""
_printing = threading.Lock()


def saw(work: str, **what: object) -> None:
    """Print one event."""
    line = json.dumps({"at": time.time_ns() // 10**6, "work": work} | what)
    with _printing:
        print(line, flush=True)


def run(works: Sequence[Callable[[], None]]) -> None:
    """Run each work in a thread until stdin ends."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for each in threads:
        each.start()
    sys.stdin.read()
    over.set()
    for each in threads:
        each.join(timeout=20)
