"""Run one process of the core on a disk in memory, message by message: a broker, or a registry.

Time stands still unless the test moves it. All messages go over the wire's bytes, and the effects
of a step are carried out as both hosts do, flushes in their order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from broker_sim.apis import DEFINED_APIS
from broker_sim.apis.frames import (
    decode_request,
    decode_response,
    encode_peer_request,
    encode_response,
)
from broker_sim.core.effects import (
    Close,
    Disconnected,
    Effects,
    Input,
    NoResponse,
    Request,
    Respond,
    Send,
    SetTimer,
    Step,
    StorageOperation,
    TimerFired,
    TimerKey,
    TraceEvent,
)
from broker_sim.core.flush_order import FlushOrder
from broker_sim.core.security.principals import ANONYMOUS
from simulation.hosts.disk import SimDisk
from simulation.hosts.sim_broker import Core
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey

AnswerKey = tuple[int, int]
"""(connection, correlation id)."""


class Asked:
    """The answers so far of a process that was asked; `closed` has reasons by connection."""

    def __init__(self) -> None:
        self.answers: dict[AnswerKey, Any] = {}
        self.closed: dict[int, str] = {}
        self.unanswered: set[AnswerKey] = set()


class CoreProcess:
    """Drives a core. A subclass makes it, in `start`."""

    core: Core

    def __init__(
        self, disk: SimDisk | None, now_ms: int, monotonic_ms: int, starts: int = 0
    ) -> None:
        self.disk = SimDisk() if disk is None else disk
        self._found = copy.deepcopy(self.disk)
        self.now_ms, self.monotonic_ms = now_ms, monotonic_ms
        self.timers: dict[TimerKey, int] = {}
        self.steps: list[Step] = []
        self.operations: list[StorageOperation] = []
        """Storage operations so far, in the order in which they were carried out."""
        self.asked = Asked()
        self.send_to_peer: Callable[[Send], None] = lambda _send: None
        """Called with each request to another process."""
        self.is_up, self.is_paused = True, False
        """A paused process stands still, as by SIGSTOP: what others send it waits."""
        self.starts = starts
        self.client_id = "test"
        self.listener = "PLAINTEXT"
        """Listener and principal of every request, until a login says otherwise."""
        self.principal = ANONYMOUS
        self.rounds_end = True
        """True if each step ends a round; if False, steps share their flushes until `end_round`."""
        self._order = FlushOrder()
        self._correlation_id = 0

    def boot(self, core: Core, start: Input) -> None:
        """Another core on what the disk holds, as of a new process."""
        self.core = core
        self.is_up, self.is_paused = True, False
        self.starts += 1
        self.timers.clear()
        self.step(start)

    def step(self, item: Input) -> Step:
        return self._carry_out(self.core.step(item, self.now_ms, self.monotonic_ms))

    def cause(self, call: Callable[[Effects], Any]) -> Any:
        """Call one of the core's parts, and carry out what that causes; what it returned."""
        effects = Effects(self.now_ms, self.monotonic_ms)
        result = call(effects)
        self._carry_out(effects.freeze())
        return result

    def _carry_out(self, step: Step) -> Step:
        for each in step.storage:
            self._write(self._order.admit(each))
        if self.rounds_end:
            self.end_round()
        for send in step.sends:
            self.send_to_peer(send)
        for response in step.responses:
            self._respond(response)
        for change in step.timers:
            self.timers.pop(change.key, None)
            if isinstance(change, SetTimer):
                self.timers[change.key] = change.deadline_ms
        self.steps.append(step)
        return step

    def disk_after(self, count: int | None = None) -> SimDisk:
        """Return the disk after the first `count` storage operations of all lives, or after all of
        them."""
        disk = copy.deepcopy(self._found)
        for operation in self.operations[:count]:
            disk.apply(operation)
        return disk

    def disks_since(self, count: int) -> Iterator[SimDisk]:
        """After a crash between any two operations since there were so many, and after the last."""
        for number in range(count, len(self.operations) + 1):
            yield self.disk_after(number)

    def end_round(self) -> None:
        """Flush the answers since the last round."""
        self._write(self._order.drain())

    def _write(self, operations: tuple[StorageOperation, ...]) -> None:
        for operation in operations:
            self.operations.append(operation)
            self.disk.apply(operation)

    def _respond(self, response: Respond | NoResponse | Close) -> None:
        match response:
            case Close(connection_id, reason):
                self.asked.closed[connection_id] = reason
            case NoResponse(connection_id, correlation_id):
                self.asked.unanswered.add((connection_id, correlation_id))
            case Respond(connection_id, correlation_id, key, version, message):
                for records in response.records:
                    records.target.records = b"".join(
                        self.disk.read(s.path, s.position, s.length) for s in records.slices
                    )
                frame = encode_response(key, version, correlation_id, message)[4:]
                self.asked.answers[connection_id, correlation_id] = (
                    framing.decode_response(KNOWN_APIS[key], version, frame)
                    if isinstance(key, ApiKey)
                    else decode_response(DEFINED_APIS[key], frame)[1]
                )

    def send(
        self, message: Any, version: int = 0, *, connection_id: int = 1, principal: str = ""
    ) -> AnswerKey:
        """Send a request; the key of its answer in `asked`."""
        self._correlation_id += 1
        frame, _ = encode_peer_request(message, version, self._correlation_id, self.client_id)
        header, decoded = decode_request(frame[4:])
        asked = Request(
            connection_id, header.correlation_id, header.api_key, header.api_version,
            self.client_id, "127.0.0.1", decoded, self.listener, principal or self.principal,
            len(frame) - 4,
        )  # fmt: skip
        self.step(asked)
        return connection_id, header.correlation_id

    def ask(self, message: Any, version: int = 0, *, connection_id: int = 1) -> Any:
        """The answer, which must come in the same step."""
        key = self.send(message, version, connection_id=connection_id)
        assert key in self.asked.answers, self.asked.closed
        return self.asked.answers[key]

    def advance(self, duration_ms: int) -> None:
        """Let time pass, firing the timers that come due, in order."""
        end_ms = self.monotonic_ms + duration_ms
        while self.timers:
            deadline_ms, key = min((at, key) for key, at in self.timers.items())
            if deadline_ms > end_ms:
                break
            del self.timers[key]
            self.pass_time(max(0, deadline_ms - self.monotonic_ms))
            self.step(TimerFired(key))
        self.pass_time(end_ms - self.monotonic_ms)

    def pass_time(self, duration_ms: int) -> None:
        """Time alone: no timer fires."""
        self.now_ms += duration_ms
        self.monotonic_ms += duration_ms

    def traced(self, kind: str) -> list[TraceEvent]:
        """Return the traces of one kind that the process has emitted in all its lives."""
        return [trace for step in self.steps for trace in step.traces if trace.kind == kind]

    def disconnect(self, connection_id: int = 1) -> None:
        self.step(Disconnected(connection_id))
