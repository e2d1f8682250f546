"""The real host: drives one `Broker` with sockets, files, the clock and timers.

Theory of operation: inputs that are ready together are one *round*. For each the core makes a
`Step`, whose storage operations are carried out at once (so that the core's next read sees them);
flushes are shared within the round as far as their order allows; when all are done, answers go
out. Requests that arrive during an fsync form the next round: this is group commit without a timer.

One thread runs everything. An exception of the core or of the disk ends the process: what is in
memory can no longer be trusted to be what is on disk, and recovery is the tested way back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from pathlib import Path

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import (
    CancelTimer,
    Close,
    Disconnected,
    Input,
    NoResponse,
    Request,
    Respond,
    SetTimer,
    Start,
    Step,
    Stop,
    TimerFired,
    TimerKey,
)
from broker_sim.server.connection import Connection
from broker_sim.server.storage import FileStorage
from txnlog_spark.wire.framing import encode_response

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds that never go back; the same clock as the event loop's."""
    return time.monotonic_ns() // 1_000_000


def machine_boot_id() -> str:
    """Names the machine's present boot; "" where the system does not tell, as outside Linux."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class BrokerHost:
    """Owns the inputs, timers and connections of one broker, inside a running event loop."""

    def __init__(self, broker: Broker, storage: FileStorage, config: BrokerConfig) -> None:
        self.frame_bytes_max = config.integer("socket.request.max.bytes")
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception when the broker cannot go on."""
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._storage = storage
        self._connections_max = config.integer("max.connections")
        self._idle_seconds_max = config.integer("connections.max.idle.ms") / 1000
        self._inputs: deque[Input] = deque()
        self._round_scheduled = False
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        self._fired: set[TimerKey] = set()
        """Timers whose input waits for its round; setting or cancelling one takes it back."""
        self._connections: dict[int, Connection] = {}
        self._next_connection_id = 1

    def start(self) -> None:
        """Recover and load. Raises whatever makes starting impossible."""
        step = self._step(Start(machine_boot_id()))
        self._set_timers(step)
        self._carry_out([step])
        if self._idle_seconds_max > 0:
            self._loop.call_later(self._idle_check_seconds(), self._close_idle)

    def stop(self) -> None:
        """A clean stop: answers that wait are dropped, files flushed and closed."""
        self._inputs.clear()
        self._carry_out([self._step(Stop())])
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        for connection in list(self._connections.values()):
            connection.close("the broker stops", level=logging.INFO)
        self._storage.close()

    def accept(self) -> Connection:
        """The protocol for a new socket (the factory of `loop.create_server`)."""
        connection = Connection(self, self._next_connection_id)
        self._next_connection_id += 1
        return connection

    # ------------------------------------------------------------------ connection.Owner

    def opened(self, connection: Connection) -> None:
        """A connection was accepted."""
        self._connections[connection.connection_id] = connection
        if len(self._connections) > self._connections_max:
            connection.close(f"over max.connections={self._connections_max}")

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        if self._connections.pop(connection.connection_id, None) is not None:
            self.submit(Disconnected(connection.connection_id))

    def submit(self, request: Request | Disconnected | TimerFired) -> None:
        """Take part in the next round."""
        self._inputs.append(request)
        if not self._round_scheduled:
            self._round_scheduled = True
            self._loop.call_soon(self._round)

    def encode(self, response: Respond) -> bytes:
        """The frame, with record bytes read from the log. Raises LookupError."""
        for records in response.records:
            records.target.records = self._storage.read_slices(records.slices)
        return encode_response(
            response.api_key, response.api_version, response.correlation_id, response.message
        )

    def now_seconds(self) -> float:
        """The event loop's clock."""
        return self._loop.time()

    # ------------------------------------------------------------------ rounds

    def _round(self) -> None:
        self._round_scheduled = False
        if self.failed.done():
            return
        try:
            steps = []
            inputs, self._inputs = self._inputs, deque()
            for item in inputs:
                if isinstance(item, TimerFired) and not self._take_fired(item.key):
                    continue
                step = self._step(item)
                self._set_timers(step)
                steps.append(step)
            self._carry_out(steps)
        except BaseException as error:  # noqa: BLE001 the process ends with it
            if not self.failed.done():
                self.failed.set_exception(error)

    def _step(self, item: Input) -> Step:
        step = self._broker.step(item, wall_ms(), monotonic_ms())
        self._storage.perform(step.storage)
        if step.traces and _log.isEnabledFor(logging.DEBUG):
            for trace in step.traces:
                _log.debug("%s %s", trace.kind, dict(trace.fields))
        return step

    def _carry_out(self, steps: list[Step]) -> None:
        self._storage.barrier()
        for step in steps:
            for response in step.responses:
                self._deliver(response)

    def _deliver(self, response: Respond | NoResponse | Close) -> None:
        connection = self._connections.get(response.connection_id)
        if connection is not None:
            connection.deliver(response)

    # ------------------------------------------------------------------ timers

    def _set_timers(self, step: Step) -> None:
        for change in step.timers:
            handle = self._timers.pop(change.key, None)
            if handle is not None:
                handle.cancel()
            self._fired.discard(change.key)
            match change:
                case SetTimer(key, deadline_ms):
                    # One more ms: the loop may fire early by its clock's resolution, and the core
                    # ignores a timer whose deadline has not come.
                    self._timers[key] = self._loop.call_at(
                        (deadline_ms + 1) / 1000, self._fire, key
                    )
                case CancelTimer():
                    pass

    def _fire(self, key: TimerKey) -> None:
        del self._timers[key]
        self._fired.add(key)
        self.submit(TimerFired(key))

    def _take_fired(self, key: TimerKey) -> bool:
        if key not in self._fired:
            return False
        self._fired.discard(key)
        return True

    def _idle_check_seconds(self) -> float:
        return min(self._idle_seconds_max / 4, 30.0)

    def _close_idle(self) -> None:
        limit = self._loop.time() - self._idle_seconds_max
        for connection in list(self._connections.values()):
            if connection.is_idle and connection.last_active < limit:
                connection.close("idle for connections.max.idle.ms", level=logging.INFO)
        self._loop.call_later(self._idle_check_seconds(), self._close_idle)
