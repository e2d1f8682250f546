"""Outcomes of the operations of a run for their clients: ok, failed or unknown, as in Jepsen.

*failed* means only that an operation had no effect for sure. An operation that was not answered, or
answered with an error that may come after its effect, is *unknown*.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

from simulation.checkers.producer_history import error_codes
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message, api_of


class Outcome(enum.Enum):
    """Outcome of an operation, as far as its client knows."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


SEND, OFFSET_COMMIT, ORDER = "send of a plain producer", "offset commit", "administrator's request"
DRIVER, NEIGHBOUR, COPY = "driver's transaction", "neighbour's transaction", "member's copy"
KEPT = "transaction with a passing topic"
KINDS = (DRIVER, NEIGHBOUR, COPY, KEPT, OFFSET_COMMIT, SEND, ORDER)
"""The kinds of operations."""

_ORDERS = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS,
    }
)
"""Beside those that only an administrator sends."""
_ADMINISTRATORS = "administrator"
"""The name of the process."""

_E = ErrorCode
_MAY_HAVE_BEEN_DONE = frozenset(
    {
        _E.UNKNOWN_SERVER_ERROR,
        _E.REQUEST_TIMED_OUT,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.NOT_COORDINATOR,
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.NOT_CONTROLLER,
        _E.KAFKA_STORAGE_ERROR,
        _E.NETWORK_EXCEPTION,
    }
)
"""Errors that are also answered when what was written waits for others, or was about to be."""


def kind_of_transactions(process: str) -> str:
    """Whose transactions a process has."""
    if process.startswith("neighbour-"):
        return NEIGHBOUR
    if process.startswith("reader-"):
        return COPY
    return KEPT if process == "passing-writer" else DRIVER


def outcome_of(answer: Message) -> Outcome:
    """Return the outcome of a request, by its answer."""
    codes = set(error_codes(answer))
    if codes == {_E.NONE}:
        return Outcome.OK
    return Outcome.UNKNOWN if codes & _MAY_HAVE_BEEN_DONE else Outcome.FAILED


class RequestOutcomes:
    """Outcomes of operations that are a single request: sent requests, and their answers."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._answered: Counter[tuple[str, Outcome]] = Counter()

    def on_sent(self, process: str, request: Message) -> None:
        """A request leaves a client."""
        kind = _kind_of(process, request)
        if kind:
            self._sent[kind] += 1

    def on_answer(self, process: str, request: Message, answer: Message) -> None:
        """An answered call."""
        kind = _kind_of(process, request)
        if kind:
            self._answered[kind, outcome_of(answer)] += 1

    def counts(self) -> Counter[tuple[str, Outcome]]:
        """Return the counts so far; a request without an answer is unknown."""
        found = self._answered.copy()
        for kind, count in self._sent.items():
            found[kind, Outcome.UNKNOWN] += count - sum(self._answered[kind, o] for o in Outcome)
        return found


def _kind_of(process: str, request: Message) -> str:
    """The kind of operation that a request is, "" for none."""
    key = api_of(request).key
    if key == ApiKey.PRODUCE:
        return "" if request.transactional_id else SEND
    if key == ApiKey.OFFSET_COMMIT:
        return OFFSET_COMMIT
    is_order = key in _ORDERS or (process == _ADMINISTRATORS and key not in _LOOKS)
    return ORDER if is_order and process != "set-up" else ""


_LOOKS = frozenset({ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.FIND_COORDINATOR})


def lines(counts: Iterable[tuple[tuple[str, Outcome], int]]) -> list[str]:
    """Return a line for each kind that occurred."""
    found = Counter(dict(counts))
    kinds = [kind for kind in KINDS if any(found[kind, each] for each in Outcome)]
    return [
        f"{kind}: " + ", ".join(f"{each.value} {found[kind, each]}" for each in Outcome)
        for kind in kinds
    ]
