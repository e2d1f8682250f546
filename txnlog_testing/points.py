"""Places of the failpoints: what `txnlog_testing.arming` patches, module by module, on import."""

from __future__ import annotations

import functools
from typing import Any

from txnlog_kafka.host.client import Client, Requests
from txnlog_kafka.operations.effects import Ask, Call, Failpoint, Outcome, Reply, Ticket, Unanswered
from txnlog_testing.failpoints import ANY_BATCH, Interference, reached
from txnlog_testing.processes import kill_driver

WRITES = {
    "DataFrameWriter": (
        "save", "saveAsTable", "insertInto", "parquet", "json", "csv", "orc", "text", "jdbc",
    ),
    "DataFrameWriterV2": (
        "create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions",
    ),
}  # fmt: skip
"""Calls that write a DataFrame, by the class of `pyspark.sql.readwriter`."""


class FaultInjectingClient(Client):
    """A client whose operations stop at failpoints, and lose requests and answers there."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._interference = Interference.NONE
        self._has_interfered = False
        self._lost: set[Ticket] = set()

    def _perform_ask(self, ask: Ask, requests: Requests) -> Outcome:
        if isinstance(ask, Failpoint):
            found = reached(ask.step, ask.when, ask.batch_id)
            if not self._has_interfered:  # else a step of the other half, at the same time
                self._interference = found
            return None
        return super()._perform_ask(ask, requests)

    def _send_call(self, call: Call, requests: Requests) -> Ticket:
        self._has_interfered = self._interference is not Interference.NONE
        if self._interference is Interference.DROP_REQUEST:
            return requests.add(Unanswered("failpoint: not sent", sent=True))
        ticket = super()._send_call(call, requests)
        if self._interference is Interference.DROP_RESPONSE:
            self._lost.add(ticket)
        return ticket

    def _receive_outcome(
        self, tickets: frozenset[Ticket], within_ms: int | None, requests: Requests
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        if self._has_interfered:
            if self._interference is Interference.KILL_ON_SEND:
                self._write_all()
                kill_driver()
            self._interference, self._has_interfered = Interference.NONE, False
        received = super()._receive_outcome(tickets, within_ms, requests)
        if received is not None and received[0] in self._lost:
            self._lost.remove(received[0])
            return received[0], Unanswered("failpoint: answer dropped", sent=True)
        return received

    def _write_all(self) -> None:
        while any(c.wants_write or not c.is_ready for c in self._connections.values()):
            self._wait_for_sockets()


def arm_clients(module: Any) -> None:
    """Make all clients of `txnlog_spark.client_cache` obey failpoints."""
    module.Client = FaultInjectingClient


def arm_reader(module: Any) -> None:
    """Put failpoints into `txnlog_spark.source.stream`: around Spark's log of offsets, and its
    commit."""
    reader = module.TxnLogStreamReader
    latest_offset, partitions, commit = reader.latestOffset, reader.partitions, reader.commit

    def planned(self: Any, start: Any, limit: Any) -> Any:
        end = latest_offset(self, start, limit)
        if end != start:
            reached("offset_log", "before", ANY_BATCH)
        return end

    def tasks(self: Any, start: Any, end: Any) -> Any:
        reached("offset_log", "after", ANY_BATCH)
        return partitions(self, start, end)

    def committed(self: Any, end: Any) -> None:
        commit(self, end)
        reached("source_commit", "before", ANY_BATCH)

    reader.latestOffset, reader.partitions, reader.commit = planned, tasks, committed


def arm_writer(module: Any) -> None:
    """Put failpoints into `txnlog_spark.sink.writers`: before Spark notes that the batch is done,
    of a stream or in foreachBatch."""
    commit = module.commit_streaming

    def committed(settings: Any, messages: Any, batch_id: int, run_id: str) -> None:
        commit(settings, messages, batch_id, run_id)
        reached("commit_log", "before", batch_id)

    module.commit_streaming = committed


def arm_worker(module: Any) -> None:
    """Put a failpoint before each task of `pyspark.worker`."""
    main = module.main

    @functools.wraps(main)
    def task(*streams: Any) -> None:
        reached("worker", "before", ANY_BATCH)
        main(*streams)

    module.main = task


def arm_batch_writes(module: Any) -> None:
    """Put failpoints around each batch write of `pyspark.sql.readwriter`, as foreachBatch does
    them."""
    for name, methods in WRITES.items():
        for method in methods:
            written = getattr(getattr(module, name), method)
            setattr(getattr(module, name), method, _armed_write(written))


def _armed_write(write: Any) -> Any:
    @functools.wraps(write)
    def armed(*args: Any, **named: Any) -> Any:
        reached("write", "before", ANY_BATCH)
        result = write(*args, **named)
        reached("write", "after", ANY_BATCH)
        return result

    return armed
