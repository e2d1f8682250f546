"""The history of a run: all that clients sent and were answered, and what must hold of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from simulation.checkers.outcomes import Outcome, RequestOutcomes, kind_of_transactions
from simulation.checkers.producer_history import BatchKey, ProducerHistory
from simulation.checkers.read_history import ReadHistory
from simulation.checkers.transaction_history import TransactionHistory
from txnlog_kafka.wire.messages import Message


class ClientHistory:
    """History of all clients of a run."""

    def __init__(self, losing: Collection[str] = ()) -> None:
        """`losing` are topics that may lose what is acknowledged."""
        self.producers = ProducerHistory(losing)
        self.reads = ReadHistory(self.producers)
        self.transactions = TransactionHistory(losing)
        self._requests = RequestOutcomes()
        self._before: dict[BatchKey, int] = {}

    def on_sent(self, process: str, request: Message) -> None:
        """A request leaves a client. Raises Violation."""
        self.producers.on_sent(request)
        self.transactions.on_sent(process, request)
        self._requests.on_sent(process, request)

    def on_answer(self, process: str, request: Message, answer: Message, version: int) -> None:
        """An answered call. Raises Violation."""
        self.producers.on_answer(process, request, answer, version)
        self.transactions.on_answer(request, answer)
        self.reads.on_answer(request, answer)
        self._requests.on_answer(process, request, answer)

    def begin_audit(self) -> None:
        """Note that all committed records are about to be read from the first one on."""
        self._before = dict(self.reads.committed)

    def end_audit(self) -> None:
        """They have been. Raises Violation."""
        self.transactions.check(self._before, self.reads.committed)

    def outcomes(self) -> Counter[tuple[str, Outcome]]:
        """Count the operations by kind and outcome."""
        found = self._requests.counts()
        for process, outcome in self.transactions.outcomes():
            found[kind_of_transactions(process), outcome] += 1
        return found
