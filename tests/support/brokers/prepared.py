"""Waits until what is decided is also done: EndTxn is answered before the markers are written.

Until its markers are there a read_committed reader ends before a committed transaction, and its
offsets are pending: on Apache Kafka for some milliseconds, or for as long as a busy machine takes.
"""

from __future__ import annotations

from support.brokers.hanging import list_transactions
from support.brokers.probe import ports_of, wait_until
from support.raw.raw import Connection

PREPARED = ("PrepareCommit", "PrepareAbort")


def wait_until_marked(bootstrap: str) -> None:
    """Return when every transaction that was decided on these brokers has all its markers."""
    for port in ports_of(bootstrap):
        wait_until(
            lambda port=port: nothing_prepared(port), "the markers of what was committed or aborted"
        )


def nothing_prepared(port: int) -> bool:
    """True if no transaction waits for markers; False as well if the broker cannot tell."""
    try:
        with Connection(port) as connection:
            # Only a whole list tells: nothing is listed while a partition of it is loading.
            found = list_transactions(connection, version=1, state_filters=[*PREPARED])
            return found == ("NONE", [])
    except (OSError, EOFError):
        return False
