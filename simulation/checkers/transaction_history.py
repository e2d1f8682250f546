"""Transactions as their clients see them: ok, failed or unknown, and what must hold of each.

*ok* is a commit that was answered as done. *failed* has no effect for sure: an abort that was
answered, a commit that was refused before anything was written, or no commit that was ever asked
for. Anything else is *unknown* (Jepsen's `info`): it is taken neither for done nor for failed.

A transaction is what one producer id and epoch sends between the answers that end it. Which
refusals are definite is written down here again, apart from the connector, for this is a witness.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from simulation.checkers.outcomes import Outcome
from simulation.checkers.producer_history import (
    BatchKey,
    batches_answered,
    batches_sent,
    identity_of,
)
from simulation.violation import ABORTED_READ, violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message, api_of

DEFINITE_REFUSALS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors of EndTxn that the coordinator returns before it writes."""
NOTHING_DONE = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}
)
"""Errors of EndTxn after which nothing was written: the transaction is as it was."""


@dataclass(slots=True)
class _Transaction:
    """Batches that a producer sends between two answers that end a transaction."""

    process: str
    identity: tuple[int, int]
    batches: set[BatchKey] = field(default_factory=set)
    acknowledged: set[BatchKey] = field(default_factory=set)
    commits: int = 0
    """Requests to commit that may have been carried out: not answered, or not for sure."""
    outcome: Outcome | None = None
    """Outcome of the transaction; None until it is over."""


@dataclass(slots=True)
class TransactionHistory:
    """History of all transactions of a run."""

    losing: Collection[str] = ()
    """Topics whose records may be missing: `unsafe_topic` says which."""
    _all: list[_Transaction] = field(default_factory=list)
    _open: dict[tuple[int, int], _Transaction] = field(default_factory=dict)
    """By producer id and epoch."""
    _of_batch: dict[BatchKey, _Transaction] = field(default_factory=dict)

    def on_sent(self, process: str, request: Message) -> None:
        """A request leaves a client."""
        key = api_of(request).key
        if key == ApiKey.PRODUCE:
            for batch, _, is_transactional in batches_sent(request):
                if is_transactional and batch not in self._of_batch:
                    identity = batch.producer_id, batch.producer_epoch
                    self._of_batch[batch] = found = self._now(process, identity)
                    found.batches.add(batch)
            return
        named = identity_of(request)
        if named is not None:
            self._now(process, named).commits += key == ApiKey.END_TXN and request.committed

    def _now(self, process: str, identity: tuple[int, int]) -> _Transaction:
        found = self._open.get(identity)
        if found is None:
            found = self._open[identity] = _Transaction(process, identity)
            self._all.append(found)
        return found

    def on_answer(self, request: Message, answer: Message) -> None:
        """An answered call of any client."""
        key = api_of(request).key
        if key == ApiKey.PRODUCE:
            for batch, error, _ in batches_answered(request, answer):
                found = self._of_batch.get(batch)
                if error == ErrorCode.NONE and found is not None:
                    found.acknowledged.add(batch)
        elif key == ApiKey.END_TXN:
            found = self._open.get((request.producer_id, request.producer_epoch))
            if found is not None:
                self._on_ended(found, answer.error_code, commits=request.committed)
        elif key == ApiKey.INIT_PRODUCER_ID and answer.error_code == ErrorCode.NONE:
            for identity, found in list(self._open.items()):
                if identity[0] == answer.producer_id and identity[1] < answer.producer_epoch:
                    self._end(found, Outcome.UNKNOWN if found.commits else Outcome.FAILED)

    def _on_ended(self, found: _Transaction, error: int, *, commits: bool) -> None:
        if error == ErrorCode.NONE:
            # An abort that is answered once a commit was asked for may stand for either.
            doubtful = Outcome.UNKNOWN if found.commits else Outcome.FAILED
            self._end(found, Outcome.OK if commits else doubtful)
        elif error in NOTHING_DONE:
            found.commits -= commits
        elif error in DEFINITE_REFUSALS:
            found.commits -= commits
            self._end(found, Outcome.UNKNOWN if found.commits else Outcome.FAILED)

    def _end(self, found: _Transaction, outcome: Outcome) -> None:
        self._open.pop(found.identity, None)
        found.outcome = outcome

    # ------------------------------------------------------------------ the end

    def outcomes(self) -> Iterator[tuple[str, Outcome]]:
        """The process and the outcome of each; one that nobody asked to commit has failed."""
        for each in self._all:
            yield each.process, each.outcome or _undecided(each)

    def check(self, before: Mapping[BatchKey, int], after: Mapping[BatchKey, int]) -> None:
        """`before` and `after` are how often each batch was returned to readers of committed
        records, before all of them were read once more and after it. Raises Violation (20, 22)."""
        seen = {key for key, count in after.items() if count}
        now = {key for key in seen if after[key] > before.get(key, 0)}
        for each in self._all:
            outcome = each.outcome or _undecided(each)
            where = {"process": each.process, "identity": each.identity}
            missing, found = each.acknowledged - now, each.batches & seen
            missing = {batch for batch in missing if batch.topic not in self.losing}
            if outcome is Outcome.OK and missing:
                violated(22, "a transaction that was answered as committed is not there",
                         missing=_some(missing), **where)  # fmt: skip
            if outcome is Outcome.FAILED and found:
                violated(22, "a transaction that has failed is committed", ABORTED_READ,
                         found=_some(found), **where)  # fmt: skip
            if found and missing:
                violated(20, "a part of a transaction is committed", found=_some(found),
                         missing=_some(missing), **where)  # fmt: skip


def _undecided(each: _Transaction) -> Outcome:
    return Outcome.UNKNOWN if each.commits else Outcome.FAILED


def _some(batches: Collection[BatchKey]) -> list[BatchKey]:
    return sorted(batches)[:3]
