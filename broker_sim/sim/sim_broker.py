"""The virtual host of one broker: drives `Broker.step`, performs its effects on virtual things.

The order is that of `Step`: storage operations one by one, and after each of them the process may
die; then answers, then timers. A dead process forgets all but its disk.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
    StorageOperation,
    TimerFired,
    TimerKey,
)
from broker_sim.sim.disk import SimDisk
from broker_sim.sim.network import Connection
from broker_sim.sim.scheduler import Event, Scheduler
from broker_sim.sim.trace import Trace
from broker_sim.sim.violation import violated
from txnlog_spark.wire.framing import decode_request, encode_response

DOWN = -1
LOG_CLEANED = "log-cleaned"
REQUEST_FAILED = "request-failed"
"""The trace of a handler that raised: a production broker closes the connection, here it fails."""


class _Died(Exception):
    """The process died between two storage operations."""


@dataclass(slots=True)
class _Slot:
    """A request's place in the order of its connection's answers."""

    correlation_id: int
    frame: bytes | None = None
    done: bool = False


class SimBroker:
    """One broker process and its disk. `watch` sees each storage operation after it is done."""

    def __init__(
        self,
        *,
        name: str,
        config: BrokerConfig,
        scheduler: Scheduler,
        trace: Trace,
        seed: str,
    ) -> None:
        self.name = name
        self.disk = SimDisk()
        self.watch: Callable[[StorageOperation], str | None] = lambda _: None
        """Called after each operation; a text is the reason to die now."""
        self.died: Callable[[str], None] = lambda _: None
        self.machine_boots = 1
        """Rises with each loss of power; a killed process is started again in the same boot."""
        self.knows_boots = True
        """False is a planted bug: a loss of power looks like a killed process."""
        self.answers_first = False
        """True is a planted bug: answers leave before their storage operations are done."""
        self._config = config
        self._scheduler = scheduler
        self._trace = trace
        self._seed = seed
        self._starts = 0
        self._broker: Broker | None = None
        self._timers: dict[TimerKey, Event] = {}
        self._connections: dict[int, Connection] = {}
        self._slots: dict[int, deque[_Slot]] = {}

    @property
    def incarnation(self) -> int:
        """Rises with every start; -1 while the process is down."""
        return DOWN if self._broker is None else self._starts

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the process on what the disk holds."""
        self._starts += 1
        self._trace.line(self.name, "start", {"incarnation": self._starts})
        rng = random.Random(f"{self._seed}/{self._starts}")
        self._broker = Broker(self._config, self.disk, rng)
        boot = self.machine_boots if self.knows_boots else 0
        self._step(Start(f"boot-{boot}"))

    def stop(self) -> None:
        """A clean stop, as on SIGTERM."""
        self._step(Stop())
        if self._broker is not None:
            self._end()

    def kill(self, reason: str) -> None:
        """SIGKILL between two events."""
        if self._broker is not None:
            self._trace.line(self.name, "killed", {"reason": reason})
            self._end()
            self.died(reason)

    def _end(self) -> None:
        self._broker = None
        for event in self._timers.values():
            event.cancel()
        self._timers.clear()
        for connection in list(self._connections.values()):
            connection.cut()
        self._connections.clear()
        self._slots.clear()

    # ------------------------------------------------------------------ BrokerEnd

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        """A request arrived."""
        self._connections[connection.connection_id] = connection
        header, message = decode_request(frame)
        slots = self._slots.setdefault(connection.connection_id, deque())
        slots.append(_Slot(header.correlation_id))
        fields = {"connection": connection.connection_id, "version": header.api_version}
        self._trace.line(self.name, f"request-{header.api_key.name}", fields)
        self._step(
            Request(
                connection_id=connection.connection_id,
                correlation_id=header.correlation_id,
                api_key=header.api_key,
                api_version=header.api_version,
                client_id=header.client_id,
                client_host="client",
                message=message,
            )
        )

    def on_disconnected(self, connection: Connection) -> None:
        """The connection is gone."""
        self._slots.pop(connection.connection_id, None)
        if self._connections.pop(connection.connection_id, None) is not None:
            self._step(Disconnected(connection.connection_id))

    # ------------------------------------------------------------------ steps

    def _step(self, item: Input) -> None:
        if self._broker is None:
            return
        step = self._broker.step(item, self._scheduler.wall_ms, self._scheduler.monotonic_ms)
        for trace in step.traces:
            self._trace.line(self.name, trace.kind, trace.fields)
            if trace.kind == LOG_CLEANED:
                self._trace.count("segments compacted")
            if trace.kind == REQUEST_FAILED:
                violated(42, "a handler raised", **trace.fields)
        try:
            if self.answers_first:
                self._answer(step)
            for operation in step.storage:
                self._perform(operation)
        except _Died as death:
            self.kill(str(death))
            return
        if not self.answers_first:
            self._answer(step)
        self._set_timers(step)

    def _perform(self, operation: StorageOperation) -> None:
        self.disk.apply(operation)
        reason = self.watch(operation)
        if reason is not None:
            raise _Died(reason)

    def _answer(self, step: Step) -> None:
        for response in step.responses:
            connection = self._connections.get(response.connection_id)
            if connection is None:
                continue
            if isinstance(response, Close):
                self._trace.line(self.name, "close", {"reason": response.reason})
                connection.close_by_broker()
                self._scheduler.after(0, partial(self.on_disconnected, connection))
            else:
                self._fill(connection, response)

    def _fill(self, connection: Connection, response: Respond | NoResponse) -> None:
        slots = self._slots[connection.connection_id]
        slot = next(s for s in slots if s.correlation_id == response.correlation_id and not s.done)
        slot.done = True
        if isinstance(response, Respond):
            for records in response.records:
                records.target.records = b"".join(
                    self.disk.read(part.path, part.position, part.length) for part in records.slices
                )
            slot.frame = encode_response(
                response.api_key,
                response.api_version,
                response.correlation_id,
                response.message,
            )
        while slots and slots[0].done:
            frame = slots.popleft().frame
            if frame is not None:
                connection.respond(frame[4:])

    def _set_timers(self, step: Step) -> None:
        for change in step.timers:
            event = self._timers.pop(change.key, None)
            if event is not None:
                event.cancel()
            match change:
                case SetTimer(key, deadline_ms):
                    self._timers[key] = self._arm(key, deadline_ms)
                case CancelTimer():
                    pass

    def _arm(self, key: TimerKey, deadline_ms: int) -> Event:
        def fire() -> None:
            self._timers.pop(key, None)
            self._step(TimerFired(key))

        return self._scheduler.after(max(0, deadline_ms * 1000 - self._scheduler.now_us), fire)
