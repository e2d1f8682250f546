"""The simulator's host of one process: drives `Broker.step`, with virtual things to do it on.

It works as `server/` does. Of each connection one request at a time is in the broker; inputs that
are ready together are one round; flushes wait as `FlushOrder` says; nobody of a round is answered
before the last flush is done, and what arrives during the flushes is the next round. The process
may die after each operation on files and between two answers. A dead process forgets all but its
disk. It may also stand still as by SIGSTOP: what happens meanwhile it finds when it goes on.

In a cluster requests to peers leave with the answers, in their order among them, and nobody can
connect before the broker serves. The registry's process is driven in the same way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from broker_sim.apis.frames import decode_request, encode_response
from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import (
    CancelTimer,
    Close,
    Delete,
    Disconnected,
    Flush,
    Input,
    NoResponse,
    Rename,
    Request,
    Respond,
    Send,
    SetTimer,
    Start,
    Step,
    Stop,
    StorageOperation,
    TimerFired,
    TimerKey,
    Truncate,
)
from broker_sim.core.flush_order import FlushOrder
from broker_sim.sim.disk import SimDisk
from broker_sim.sim.network import Connection
from broker_sim.sim.peer_links import PeerLinks
from broker_sim.sim.scheduler import Event, Scheduler
from broker_sim.sim.trace import Trace
from broker_sim.sim.violation import violated
from txnlog_spark.wire.invariants import check

DOWN = -1
LOG_CLEANED = "log-cleaned"
REQUEST_FAILED = "request-failed"
"""The trace of a handler that raised: a production broker closes the connection, here it fails."""

FLUSH_US_MIN, FLUSH_US_MAX = 100, 5_000
"""How long the flushes of one round take."""
STALL_US_MAX = 300_000
STALL_SHARE = 0.02
"""Of the flushes, those that take up to `STALL_US_MAX`: a busy disk, and a long queue behind it."""

_Answer = Respond | NoResponse | Close | Send


class Core(Protocol):
    """What is driven: a `Broker`, or the registry."""

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Everything `item` causes, as in `Broker.step`."""


class _Died(Exception):
    """The process died between two effects."""


@dataclass(slots=True)
class _Client:
    """What the broker's end of a connection holds."""

    connection: Connection
    waiting: deque[bytes] = field(default_factory=deque)
    """Requests behind the one that the broker has."""
    correlation_id: int | None = None
    """Of the request that the broker has."""
    ended: bool = False
    """The client sends no more."""


def _survives(_: object = None) -> str | None:
    """No reason to die."""


class SimulatedBroker:
    """One broker process and its disk; a broker that is alone, unless a subclass says else."""

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
        self.watch: Callable[[StorageOperation], str | None] = _survives
        """Called after each operation on a file; a text is the reason to die now."""
        self.watch_answer: Callable[[], str | None] = _survives
        """Called between two answers of one round, likewise."""
        self.died: Callable[[str], None] = lambda _: None
        self.machine_boots = 1
        """Rises with each loss of power; a killed process is started again in the same boot."""
        self.knows_boots = True
        """False is a planted bug: a loss of power looks like a killed process."""
        self.answers_first = False
        """True is a planted bug: answers leave before their storage operations are done."""
        self.links: PeerLinks | None = None
        """The way to its peers; a broker that is alone has none."""
        self.watch_step: Callable[[Core, Step], None] = lambda _core, _step: None
        """Called with each step, before its effects are carried out."""
        self.watch_respond: Callable[[Respond], None] = lambda _response: None
        """Called with each answer that leaves."""
        self.wall_skew_ms = 0
        """How far this machine's wall clock is off."""
        self.paused = False
        self._deferred: deque[Callable[[], None]] = deque()
        """What has happened since the process stands still."""
        self._config = config
        self._scheduler = scheduler
        self._trace = trace
        self._seed = seed
        self._starts = 0
        self._core: Core | None = None
        self._is_serving = False
        self._flush_order = FlushOrder()
        self._flush_count = 0
        self._flush_times = random.Random(f"{seed}/flush-times")
        self._inputs: deque[Input] = deque()
        self._round: Event | None = None
        """The next round, or the end of the flushes of the one before it."""
        self._answers: list[_Answer] = []
        """Of the round whose flushes are going on."""
        self._timers: dict[TimerKey, Event] = {}
        self._fired: set[TimerKey] = set()
        """Timers whose input waits for its round; setting or cancelling one takes it back."""
        self._clients: dict[int, _Client] = {}

    @property
    def incarnation(self) -> int:
        """Rises with every start; -1 while the process is down, or lets nobody in yet."""
        return self._starts if self._is_serving else DOWN

    @property
    def is_up(self) -> bool:
        """Whether there is a process."""
        return self._core is not None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the process on what the disk holds."""
        self._starts += 1
        self._trace.line(self.name, "start", {"incarnation": self._starts})
        rng = random.Random(f"{self._seed}/{self._starts}")
        self._core = core = self._make_core(rng)
        boot = self.machine_boots if self.knows_boots else 0
        with self._mortal():
            self._perform_round(core, (Start(f"boot-{boot}"),))
            self._deliver(self._take_answers())

    def _make_core(self, rng: random.Random) -> Core:
        return Broker(self._config, self.disk, rng)

    def _lets_in(self, core: Core) -> bool:
        """Whether others may connect from now on."""
        del core
        return True

    def stop(self) -> None:
        """A clean stop, as on SIGTERM: the round that goes on is answered, others are not."""
        core = self._core
        if core is None:
            return
        with self._mortal():
            self._deliver(self._take_answers())
            self._inputs.clear()
            self._cancel_timers()
            self._perform_round(core, (Stop(),))
            self._deliver(self._take_answers())
            self._end()

    def kill(self, reason: str) -> None:
        """SIGKILL between two events."""
        if self._core is not None:
            self._trace.line(self.name, "killed", {"reason": reason})
            self._end()
            self.died(reason)

    def pause(self, duration_us: int) -> None:
        """SIGSTOP, and SIGCONT after a while; nothing for one that is down or stands still."""
        if self._core is None or self.paused:
            return
        self._trace.line(self.name, "paused", {"for_us": duration_us})
        self.paused = True
        starts = self._starts
        self._scheduler.after(
            duration_us, lambda: self.wake_up() if starts == self._starts else None
        )

    def wake_up(self) -> None:
        """Go on, with what has happened meanwhile, in its order."""
        if not self.paused:
            return
        self._trace.line(self.name, "resumed")
        self.paused = False
        deferred, self._deferred = self._deferred, deque()
        for action in deferred:
            self.later(0, action)

    def later(self, delay_us: int, action: Callable[[], None]) -> Event:
        """Do it in a while, unless the process has ended by then."""
        starts = self._starts
        return self._scheduler.after(
            delay_us, lambda: self.guarded(action) if starts == self._starts else None
        )

    def guarded(self, action: Callable[[], None]) -> None:
        """Do what has happened to the process: not to a dead one, later while it stands still."""
        if self.paused:
            self._deferred.append(action)
        elif self._core is not None:
            action()

    def _end(self) -> None:
        self._core = None
        self._is_serving = self.paused = False
        self._deferred.clear()
        if self.links is not None:
            self.links.close()
        self._flush_order.forget()
        self._inputs.clear()
        self._take_answers()
        self._cancel_timers()
        if self._round is not None:
            self._round.cancel()
            self._round = None
        for client in self._clients.values():
            client.connection.cut()
        self._clients.clear()

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        """Around effects, between any two of which the process may die."""
        try:
            yield
        except _Died as death:
            self.kill(str(death))

    # ------------------------------------------------------------------ BrokerEnd

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        """A request arrived."""
        self.guarded(partial(self._on_frame, connection, frame))

    def _on_frame(self, connection: Connection, frame: bytes) -> None:
        client = self._clients.setdefault(connection.connection_id, _Client(connection))
        client.waiting.append(frame)
        self._go_on(client)

    def on_ended(self, connection: Connection) -> None:
        """The client sends no more: what it sent before is carried out."""
        self.guarded(partial(self._on_ended, connection))

    def _on_ended(self, connection: Connection) -> None:
        client = self._clients.get(connection.connection_id)
        if client is not None:
            client.ended = True
            self._go_on(client)

    def on_disconnected(self, connection: Connection) -> None:
        """The connection is gone, and what waited there."""
        connection.broker_open = False
        self.guarded(partial(self._on_disconnected, connection))

    def _on_disconnected(self, connection: Connection) -> None:
        if self._clients.pop(connection.connection_id, None) is not None:
            self.submit(Disconnected(connection.connection_id))

    def knows(self, peer: int) -> bool:
        """Whether the core knows where a peer listens."""
        return isinstance(self._core, Broker) and self._core.peer_endpoint(peer) is not None

    def _go_on(self, client: _Client) -> None:
        """Take the next request when the one before it is answered."""
        if client.correlation_id is None and client.waiting:
            self._take_request(client, client.waiting.popleft())
        if client.ended and not client.waiting:
            client.connection.broker_open = False
            self._on_disconnected(client.connection)

    def _take_request(self, client: _Client, frame: bytes) -> None:
        header, message = decode_request(frame)
        client.correlation_id = header.correlation_id
        connection_id = client.connection.connection_id
        fields = {"connection": connection_id, "version": header.api_version}
        self._trace.line(self.name, f"request-{header.api_key.name}", fields)
        self.submit(
            Request(
                connection_id=connection_id,
                correlation_id=header.correlation_id,
                api_key=header.api_key,
                api_version=header.api_version,
                client_id=header.client_id,
                client_host="client",
                message=message,
            )
        )

    # ------------------------------------------------------------------ rounds

    def submit(self, item: Input) -> None:
        """Hand an input to the core, in the order of the calls."""
        self._inputs.append(item)
        self._schedule_round()

    def _schedule_round(self) -> None:
        if self._round is None and self._inputs:
            self._round = self.later(0, self._one_round)

    def _one_round(self) -> None:
        core = self._core
        if core is None:
            return
        inputs, self._inputs = self._inputs, deque()
        flushes_before = self._flush_count
        with self._mortal():
            self._perform_round(core, inputs)
            if self._flush_count > flushes_before:
                self._round = self.later(self._flush_us(), self._end_round)
            else:
                self.guarded(self._end_round)
        if self._core is None and len(inputs) > 1:
            self._trace.count("broker died in a round of several")

    def _perform_round(self, core: Core, inputs: Iterable[Input]) -> None:
        flushing = 0
        for item in inputs:
            if isinstance(item, TimerFired) and not self._take_fired(item.key):
                continue
            step = self._step(core, item)
            if self._answers and any(
                isinstance(op, Truncate | Delete | Rename) for op in step.storage
            ):
                # They may have records in the files that this step changes.
                self._perform(self._flush_order.drain())
                self._deliver(self._take_answers())
            if self.answers_first:
                self._deliver((*step.sends, *step.responses))
            else:
                self._answers += (*step.sends, *step.responses)
            for operation in step.storage:
                self._perform(self._flush_order.admit(operation))
            self._set_timers(step)
            flushing += any(isinstance(op, Flush) for op in step.storage)
        if flushing > 1:
            self._trace.count("group commit")
        self._perform(self._flush_order.drain())

    def _end_round(self) -> None:
        self._round = None
        with self._mortal():
            self._deliver(self._take_answers())
            self._schedule_round()

    def _take_answers(self) -> list[_Answer]:
        answers, self._answers = self._answers, []
        return answers

    def _flush_us(self) -> int:
        stalls = self._flush_times.random() < STALL_SHARE
        return self._flush_times.randint(FLUSH_US_MIN, STALL_US_MAX if stalls else FLUSH_US_MAX)

    # ------------------------------------------------------------------ steps

    def _step(self, core: Core, item: Input) -> Step:
        now_ms = self._scheduler.wall_ms + self.wall_skew_ms
        step = core.step(item, now_ms, self._scheduler.monotonic_ms)
        self.watch_step(core, step)
        if not self._is_serving:
            self._is_serving = self._lets_in(core)
        for trace in step.traces:
            self._trace.line(self.name, trace.kind, trace.fields)
            if trace.kind == LOG_CLEANED:
                self._trace.count("segments compacted")
            if trace.kind == REQUEST_FAILED:
                violated(42, "a handler raised", **trace.fields)
        return step

    def _perform(self, operations: Iterable[StorageOperation]) -> None:
        for operation in operations:
            self.disk.apply(operation)
            self._flush_count += isinstance(operation, Flush)
            reason = self.watch(operation)
            if reason is not None:
                raise _Died(reason)

    def _deliver(self, answers: Iterable[_Answer]) -> None:
        for index, answer in enumerate(answers):
            reason = self.watch_answer() if index else None
            if reason is not None:
                raise _Died(reason)
            if isinstance(answer, Send):
                if self.links is not None:
                    self.links.send(answer)
                continue
            client = self._clients.get(answer.connection_id)
            if client is None:
                continue
            if isinstance(answer, Close):
                self._trace.line(self.name, "close", {"reason": answer.reason})
                client.connection.close_by_broker()
                self._on_disconnected(client.connection)
            else:
                self._answer(client, answer)

    def _answer(self, client: _Client, answer: Respond | NoResponse) -> None:
        check(client.correlation_id == answer.correlation_id, "no request waits for this answer",
              waits=client.correlation_id, answered=answer.correlation_id)  # fmt: skip
        client.correlation_id = None
        if isinstance(answer, Respond):
            self.watch_respond(answer)
            for records in answer.records:
                records.target.records = b"".join(
                    self.disk.read(part.path, part.position, part.length) for part in records.slices
                )
            frame = encode_response(
                answer.api_key, answer.api_version, answer.correlation_id, answer.message
            )
            client.connection.respond(frame[4:])
        self._go_on(client)

    # ------------------------------------------------------------------ timers

    def _set_timers(self, step: Step) -> None:
        for change in step.timers:
            event = self._timers.pop(change.key, None)
            if event is not None:
                event.cancel()
            self._fired.discard(change.key)
            match change:
                case SetTimer(key, deadline_ms):
                    delay_us = max(0, deadline_ms * 1000 - self._scheduler.now_us)
                    self._start_timer(key, delay_us)
                case CancelTimer():
                    pass

    def _start_timer(self, key: TimerKey, delay_us: int) -> None:
        def fire() -> None:
            # Set again or taken back while the process stood still: this one is over.
            if self._timers.get(key) is event:
                del self._timers[key]
                self._fired.add(key)
                self.submit(TimerFired(key))

        event = self._timers[key] = self.later(delay_us, fire)

    def _take_fired(self, key: TimerKey) -> bool:
        if key not in self._fired:
            return False
        self._fired.discard(key)
        return True

    def _cancel_timers(self) -> None:
        for event in self._timers.values():
            event.cancel()
        self._timers.clear()
        self._fired.clear()
