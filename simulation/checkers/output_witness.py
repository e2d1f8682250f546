"""Witness of a driver's effect on others: it watches the requests and reads of the driver.

A run that has written the record of a batch is newer than the run whose record it had read, and
than those before that. During a commit, a run that has read the record of a newer run fences no
other run. The same holds if that record stood before the commit began, because the run could read
it (78). A query on a copy of a checkpoint leaves the original's transactional id and progress
alone. A query that was started on a copy with the original's id writes nothing at all (79).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulation.hosts.deployment import Deployment
from simulation.hosts.spark_driver import Driver
from simulation.violation import violated
from txnlog_kafka.operations.effects import (
    Failpoint,
    FileAsk,
    FileFailed,
    FileOutcome,
    ReadFile,
    WriteFile,
)
from txnlog_kafka.wire.messages import ApiKey, Message, api_of
from txnlog_spark.commit.journal import journal_folder

RECORD = "/attempt.json"
WRITING = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.PRODUCE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
"""Requests that fence somebody, or write."""


@dataclass(slots=True)
class Record:
    """The run that wrote a record, and the earlier runs that its writer had read records of."""

    run_id: str = ""
    ended: frozenset[str] = frozenset()


class OutputWitness:
    """Witness of a driver. `records` has the records of all drivers, by path."""

    def __init__(
        self,
        driver: Driver,
        records: dict[str, Record],
        original: Deployment | None,
        *,
        is_refused: bool,
    ) -> None:
        self._driver = driver
        self._records = records
        self._read: dict[str, Record] = {}
        """Records that the driver read last, by path."""
        self._original = original
        self._is_refused = is_refused
        self._is_reported = False
        """True if it has read, since the commit began, that another run has followed.

        A function of foreachBatch may catch the error and try again.
        """
        self._stood: Record | None = None
        """The record that stood when the commit of its batch began. A driver that was paused may
        write an older run's over it before it is read."""

    def served(self, ask: FileAsk, perform: Callable[[], FileOutcome]) -> FileOutcome:
        """Return the store's answer, and note whether it says that another run has followed."""
        path = getattr(ask, "path", "")
        if not path.endswith(RECORD):
            return perform()
        checkpoint, run_id = self._driver.checkpoint, self._driver.run_id
        found = perform()
        if isinstance(ask, WriteFile) and checkpoint.perform(ReadFile(path)) == ask.data:
            known = self._read.get(path, Record())
            ended = known.ended | {known.run_id}
            self._records[path] = Record(run_id, ended - {run_id})
        if isinstance(ask, ReadFile) and not isinstance(found, FileFailed):
            self._read[path] = record = self._records.get(path, Record())
            if run_id in record.ended:
                self._is_reported = True
        return found

    def on_reached(self, reached: Failpoint) -> None:
        """Note the record that stands when the driver begins to commit a batch."""
        if (reached.step, reached.when) == ("collect", "before"):
            self._stood = self._records.get(self._path)
            self._is_reported = False

    @property
    def _path(self) -> str:
        sink_name = self._driver.options.sink_name
        return journal_folder(self._driver.checkpoint.location, sink_name) + RECORD

    @property
    def _transactional_id(self) -> str:
        return self._driver.options.transactional_id_of(self._driver.checkpoint.query_id)

    def _stands_overtaken(self) -> bool:
        """True if the record that it could read since it began to commit names a newer run, too."""
        stood = self._stood
        if stood is None or stood is not self._records.get(self._path):
            return False
        return self._driver.run_id in stood.ended

    def on_sent(self, message: Message) -> None:
        """Check a request that leaves the driver. Raises Violation (78, 79)."""
        key = api_of(message).key
        if key not in WRITING:
            return
        name = str(getattr(message, "transactional_id", None))
        is_own = name == self._transactional_id
        is_overtaken = self._is_reported or self._stands_overtaken()
        if key is ApiKey.INIT_PRODUCER_ID and is_own and is_overtaken:
            violated(78, "a run that was overtaken fences the one that has overtaken it",
                     run_id=self._driver.run_id, transactional_id=name)  # fmt: skip
        if self._is_refused:
            violated(79, "a copy with the transactional id of the original writes",
                     run_id=self._driver.run_id, request=key.name)  # fmt: skip
        original = self._original
        if original is None:
            return
        group_id = getattr(message, "group_id", None)
        ids = {sink.transactional_id_of("") for sink in original.sinks}
        if name in ids or group_id in original.groups():
            violated(79, "a copy touches what belongs to the original",
                     transactional_id=name, group_id=group_id, request=key.name)  # fmt: skip
