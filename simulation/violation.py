"""A broken invariant: what fails a seed."""

from __future__ import annotations

from typing import Any, NoReturn

from txnlog_kafka.wire.invariants import check

LOST_WRITE, DUPLICATE, GARBAGE_READ = "lost-write", "duplicate", "garbage-read"
NONMONOTONIC_SEND, ABORTED_READ = "nonmonotonic-send", "aborted-read (G1a)"
"""Anomalies of invariants that have several."""

ANOMALIES: dict[int, tuple[str, ...]] = {
    1: ("inconsistent-offsets", "lost-write"),
    2: ("poll-skip",),
    3: ("lost-write",),
    4: ("garbage-read",),
    5: ("nonmonotonic-poll",),
    14: ("duplicate",),
    20: ("intermediate-read (G1b)",),
    21: ("aborted-read (G1a)",),
    22: ("lost-write", "aborted-read (G1a)", "duplicate"),
    23: ("dirty-update",),
    29: ("nonmonotonic-send",),
    32: ("stale-read",),
    35: ("lost-write", "duplicate", "nonmonotonic-send", "garbage-read"),
}
"""Anomalies that clients see, by the number of the broken invariant.

If the check does not say which anomaly it is, the first one counts.

Sources: Jepsen's Kafka workload (jepsen.tests.kafka) and Elle; G1a and G1b are Adya's ("Weak
Consistency", 1999). If a reader gets a part of a transaction's writes without the rest, that is
G1b. If a committed transaction contains the writes of an aborted one, that is a dirty update.
"""


class Violation(Exception):
    """An invariant does not hold. `number` is the one in `invariants.INVARIANTS`."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


def violated(number: int, what: str, anomaly: str = "", /, **context: Any) -> NoReturn:
    """Raise Violation; the context says with which values. `anomaly` is one of the number's."""
    named = ANOMALIES.get(number, ())
    check(not anomaly or anomaly in named, "not an anomaly of this invariant", number=number,
          anomaly=anomaly)  # fmt: skip
    details = ", ".join(f"{name}={value!r}" for name, value in context.items())
    text = f"{what} ({details})" if details else what
    name = anomaly or next(iter(named), "")
    raise Violation(number, f"{name}: {text}" if name else text)
