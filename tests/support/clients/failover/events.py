"""What a client program of this folder prints: a JSON line for each thing that it saw.

`at` is the time in ms since 1970, `work` one of WORKS. Then `ok` with the values that are
acknowledged, committed or read, `error` with a name, or `anew`: the client had to be made again,
because no more can be done with the one that there was. A program is given, in this order, the
bootstrap servers, the topics of "produce" and "transact", a group and a transactional id. It ends
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
    """All works, each in a thread, until stdin ends."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for each in threads:
        each.start()
    sys.stdin.read()
    over.set()
    for each in threads:
        each.join(timeout=20)
