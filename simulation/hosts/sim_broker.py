"""The simulator's host of one process: drives `Broker.step`, with virtual things to do it on.

It works as `server/` does. Of each connection one request at a time is in the broker; inputs that
are ready together are one round; flushes wait as `FlushOrder` says; nobody of a round is answered
before the last flush is done, and what arrives during the flushes is the next round. The process
may die after each operation on files and between two answers. A dead process forgets all but its
disk. It may also stand still as by SIGSTOP: what happens meanwhile it finds when it goes on.
A write that finds no space costs the core, and the process makes a new one from the files; a flush
that fails ends the process.

In a cluster requests to peers leave with the answers, in their order among them, and nobody can
connect before the broker serves. The registry's process is driven in the same way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from broker_sim.apis.frames import decode_request, encode_response
from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.data_directory import MACHINE_BOOT_FILE
from broker_sim.core.effects import (
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
    Start,
    Step,
    Stop,
    StorageOperation,
    StorageSpace,
    TimerFired,
    TimerKey,
    Truncate,
)
from simulation.hosts.clock import MachineClock
from simulation.hosts.disk import FlushFailed, NoSpace, SimDisk
from simulation.hosts.network import SimulatedConnection
from simulation.hosts.peer_links import PeerLinks, Peers
from simulation.hosts.process_files import (
    FAILED_FLUSH,
    NO_SPACE,
    RETRY_US,
    Mortal,
    ProcessDied,
    ProcessFiles,
    SpaceWatch,
)
from simulation.hosts.process_timers import ProcessTimers
from simulation.hosts.scheduler import Event, Scheduler
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.wire.invariants import InvariantViolation, check

DOWN = -1
LOG_CLEANED = "log-cleaned"
REQUEST_FAILED = "request-failed"
"""The trace of a handler that raised: a production broker closes the connection, here it fails."""

_Answer = Respond | NoResponse | Close | Send


class Core(Protocol):
    """Core that a process drives: a `Broker`, or the registry."""

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Return everything that an input causes, as `Broker.step` does."""


@dataclass(slots=True)
class Client:
    """State of the broker's end of a connection."""

    connection: SimulatedConnection
    waiting: deque[bytes] = field(default_factory=deque)
    """Requests behind the one that the broker has."""
    correlation_id: int | None = None
    """Correlation id of the request that the broker has."""
    ended: bool = False
    """True if the client sends no more."""


class Observer:
    """Called at these moments of a process; it does nothing where a subclass has no method."""

    def on_storage(self, process: SimulatedBroker, operation: StorageOperation) -> str | None:
        """Return the reason if the process dies after this operation on files."""

    def flush_fails(self, process: SimulatedBroker) -> bool:
        """True if the next flush of the process fails."""
        del process
        return False

    def on_answer(self, process: SimulatedBroker) -> str | None:
        """Return the reason if the process dies between two answers of a round."""

    def on_step(self, process: SimulatedBroker, item: Input, step: Step) -> None:
        """Hear of a step before its effects are carried out."""

    def on_done(self, process: SimulatedBroker, step: Step) -> None:
        """Hear of a step when everything that it writes is in the files."""

    def on_respond(self, process: SimulatedBroker, response: Respond) -> None:
        """Hear that an answer leaves."""

    def on_dying(self, process: SimulatedBroker, reason: str) -> None:
        """Hear that the process is about to die; it is still as it was."""

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """Hear that the process is gone."""

    def on_write_failed(self, process: SimulatedBroker) -> None:
        """Hear that a write found no space; a part of it may be there."""


class SimulatedBroker:
    """A broker process and its disk; a broker that is alone, unless a subclass says else."""

    def __init__(
        self,
        *,
        name: str,
        config: BrokerConfig,
        scheduler: Scheduler,
        trace: Trace,
        seed: str,
        observer: Observer,
        peers: Peers | None = None,
    ) -> None:
        """`peers` are those of a process of a cluster that asks others."""
        # The machine: its disk and its clock outlive a process.
        self.name = name
        self.disk = SimDisk(partial(observer.flush_fails, self))
        self.files = ProcessFiles(
            self.disk, random.Random(f"{seed}/flush-times"), partial(observer.on_storage, self)
        )
        self.clock = MachineClock(scheduler)
        self.machine_boots = 1
        """Rises with each loss of power; a killed process is started again in the same boot."""
        self.knows_boots = True
        """False is a planted bug: a loss of power looks like a killed process."""
        self.answers_first = False
        """True is a planted bug: answers leave before their storage operations are done."""
        # The process: its connections to peers, its waiting events and its core.
        self.links: PeerLinks | None = None
        """The way to its peers; a broker that is alone has none."""
        if peers is not None:
            self.links = PeerLinks(
                name, peers, scheduler, trace,
                submit=self.submit, later=self.later, guarded=self.guarded, knows=self.knows,
            )  # fmt: skip
        self.paused = False
        self._deferred: deque[Callable[[], None]] = deque()
        """Events that have happened since the process stands still."""
        self._config = config
        self._scheduler = scheduler
        self._trace = trace
        self._seed = seed
        self._observer = observer
        self._starts = 0
        self._core: Core | None = None
        self.is_running = False
        """True if a process exists; it may be without a core, while no space is left for one."""
        self._is_serving = False
        self._space = SpaceWatch(self.disk, scheduler)
        self._rng = random.Random(seed)
        # A round: the inputs that are handled together, then their flushes, then their answers.
        self._inputs: deque[Input] = deque()
        self._round: Event | None = None
        """The next round, or the end of the flushes of the one before it."""
        self._answers: list[_Answer] = []
        """Answers of the round whose flushes are going on."""
        self._timers = ProcessTimers(self.clock, self.later, self.submit)
        self.clients: dict[int, Client] = {}
        """Clients by the id of their connection."""
        self._mortal = Mortal(self._die_of)

    @property
    def incarnation(self) -> int:
        """Number of the process's starts; -1 while it is down, or lets nobody in yet."""
        return self._starts if self._is_serving else DOWN

    @property
    def broker(self) -> Broker:
        """Core of a broker that is up."""
        if not isinstance(self._core, Broker):
            raise InvariantViolation(f"{self.name} has not a broker's core now")
        return self._core

    @property
    def timer_keys(self) -> tuple[TimerKey, ...]:
        """Keys of the timers that are set."""
        return self._timers.keys

    @property
    def is_up(self) -> bool:
        """True if a process with a core exists."""
        return self._core is not None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the process on what the disk holds."""
        self._starts += 1
        self._trace.line(self.name, "start", {"incarnation": self._starts})
        self._rng = random.Random(f"{self._seed}/{self._starts}")
        self.is_running = True
        with self._mortal:
            try:
                self._begin()
            except NoSpace:
                self._find_no_space()
                self._begin()

    def _begin(self) -> None:
        """Start a new core from the files on the disk."""
        self._forget_core()
        self._space.said_low = False
        self._core = core = self._make_core(self._rng)
        boot = self.machine_boots if self.knows_boots else 0
        self._perform_round(core, (Start(f"boot-{boot}"),))
        self._deliver(self._take_answers())

    def _make_core(self, rng: random.Random) -> Core:
        return Broker(self._config, self.disk, rng)

    def stop(self) -> None:
        """Stop cleanly, as on SIGTERM: the present round is answered, later inputs are not."""
        core = self._core
        with self._mortal:
            self._deliver(self._take_answers())
            self._inputs.clear()
            self._timers.cancel()
            if core is not None:
                self._perform_round(core, (Stop(),))
                self._deliver(self._take_answers())
            self._end()

    def kill(self, reason: str) -> None:
        """Kill the process as by SIGKILL, between two events."""
        if self.is_running:
            self._trace.line(self.name, "killed", {"reason": reason})
            self._observer.on_dying(self, reason)
            self._end()
            self._observer.on_died(self, reason)

    def pause(self, duration_us: int) -> None:
        """Stop a process that runs, as by SIGSTOP; let it go on after a while."""
        if not self.is_running or self.paused:
            return
        self._trace.line(self.name, "paused", {"for_us": duration_us})
        self.paused = True
        starts = self._starts
        self._scheduler.after(
            duration_us, lambda: self.wake_up() if starts == self._starts else None
        )

    def wake_up(self) -> None:
        """Go on, with the events that have happened meanwhile, in their order."""
        if not self.paused:
            return
        self._trace.line(self.name, "resumed")
        self.paused = False
        deferred, self._deferred = self._deferred, deque()
        for action in deferred:
            self.later(0, action)

    def later(self, delay_us: int, action: Callable[[], None]) -> Event:
        """Do an action in a while, unless the process has ended by then."""
        starts = self._starts
        return self._scheduler.after(
            delay_us, lambda: self.guarded(action) if starts == self._starts else None
        )

    def guarded(self, action: Callable[[], None]) -> None:
        """Do an action now, later if the process stands still, and never if it is dead."""
        if self.paused:
            self._deferred.append(action)
        elif self.is_running:
            action()

    def _end(self) -> None:
        self.is_running = self._is_serving = self.paused = False
        self._deferred.clear()
        self._forget_core()
        for client in self.clients.values():
            client.connection.cut()
        self.clients.clear()

    def _forget_core(self) -> None:
        """Forget the core, and everything that it has begun."""
        self._core = None
        if self.links is not None:
            self.links.close()
        self.files.forget()
        self._inputs.clear()
        self._take_answers()
        self._timers.cancel()
        if self._round is not None:
            self._round.cancel()
            self._round = None

    def _die_of(self, error: BaseException | None) -> bool:
        """End the process by an error; return False for an error that ends no process."""
        match error:
            case ProcessDied():
                self.kill(str(error))
            case FlushFailed():
                # As the server does: what is gone is not known, though the machine goes on.
                self.disk.apply(Delete(MACHINE_BOOT_FILE))
                self.kill(FAILED_FLUSH)
            case NoSpace():
                self._find_no_space()
                self.kill(NO_SPACE)
            case _:
                return False
        return True

    # ------------------------------------------------------------------ no space

    def _find_no_space(self) -> None:
        self._trace.line(self.name, "no-space")
        self._space.release()
        self._observer.on_write_failed(self)

    def _start_anew(self) -> None:
        """Start a new core after a write without space: the old one is ahead of its files."""
        self._find_no_space()
        for client in list(self.clients.values()):
            if client.correlation_id is not None:
                self._refuse(client)
        self._restart_core()

    def _restart_core(self) -> None:
        with self._mortal:
            try:
                self._begin()
            except NoSpace:
                self._find_no_space()
                self._forget_core()
                self.later(RETRY_US, self._restart_core)

    def _refuse(self, client: Client) -> None:
        self.clients.pop(client.connection.connection_id, None)
        client.connection.close_by_broker()

    def _look_at_space(self, core: Core) -> None:
        is_low = self._space.is_low()
        if is_low != self._space.said_low:
            self._space.said_low = is_low
            self._perform_round(core, (StorageSpace(is_low),))
            self._deliver(self._take_answers())

    # ------------------------------------------------------------------ BrokerEnd

    def on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        """Take a request that has arrived."""
        self.guarded(partial(self._on_frame, connection, frame))

    def _on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        client = self.clients.setdefault(connection.connection_id, Client(connection))
        client.waiting.append(frame)
        self._take_next_request(client)

    def on_ended(self, connection: SimulatedConnection) -> None:
        """Hear that the client sends no more: its earlier requests are carried out."""
        self.guarded(partial(self._on_ended, connection))

    def _on_ended(self, connection: SimulatedConnection) -> None:
        client = self.clients.get(connection.connection_id)
        if client is not None:
            client.ended = True
            self._take_next_request(client)

    def on_disconnected(self, connection: SimulatedConnection) -> None:
        """Forget a connection that is gone, with the requests that waited there."""
        connection.broker_open = False
        self.guarded(partial(self._on_disconnected, connection))

    def _on_disconnected(self, connection: SimulatedConnection) -> None:
        if self.clients.pop(connection.connection_id, None) is not None:
            self.submit(Disconnected(connection.connection_id))

    def knows(self, peer: int) -> bool:
        """True if the core knows where a peer listens."""
        return self.is_up and self.broker.peer_endpoint(peer) is not None

    def _take_next_request(self, client: Client) -> None:
        """Take the next request when the one before it is answered."""
        if client.correlation_id is None and client.waiting:
            self._take_request(client, client.waiting.popleft())
        if client.ended and not client.waiting:
            client.connection.broker_open = False
            self._on_disconnected(client.connection)

    def _take_request(self, client: Client, frame: bytes) -> None:
        header, message = decode_request(frame, client.connection.decode)
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
        inputs, self._inputs = self._inputs, deque()
        if core is None:
            self._round = None
            self._refuse_all(inputs)
            return
        flushes_before = self.files.flush_count
        with self._mortal:
            try:
                self._look_at_space(core)
                self._perform_round(core, inputs)
            except NoSpace:
                self._start_anew()
                return
            if self.files.flush_count > flushes_before:
                self._round = self.later(self.files.flush_us(), self._end_round)
            else:
                self.guarded(self._end_round)
        if not self.is_running and len(inputs) > 1:
            self._trace.count("broker died in a round of several")

    def _refuse_all(self, inputs: Iterable[Input]) -> None:
        """Refuse all requests: there is no space for a core."""
        for item in inputs:
            if isinstance(item, Request) and item.connection_id in self.clients:
                self._refuse(self.clients[item.connection_id])

    def _perform_round(self, core: Core, inputs: Iterable[Input]) -> None:
        flushing = 0
        for item in inputs:
            if isinstance(item, TimerFired) and not self._timers.take_fired(item.key):
                continue
            step = self._step(core, item)
            if self._answers and any(
                isinstance(op, Truncate | Delete | Rename) for op in step.storage
            ):
                # They may have records in the files that this step changes.
                self.files.barrier()
                self._deliver(self._take_answers())
            if self.answers_first:
                self._deliver((*step.sends, *step.responses))
            else:
                self._answers += (*step.sends, *step.responses)
            self.files.perform(step.storage)
            self._observer.on_done(self, step)
            self._timers.change(step.timers)
            flushing += any(isinstance(op, Flush) for op in step.storage)
        if flushing > 1:
            self._trace.count("group commit")
        self.files.barrier()

    def _end_round(self) -> None:
        self._round = None
        with self._mortal:
            self._deliver(self._take_answers())
            self._schedule_round()

    def _take_answers(self) -> list[_Answer]:
        answers, self._answers = self._answers, []
        return answers

    # ------------------------------------------------------------------ steps

    def _step(self, core: Core, item: Input) -> Step:
        step = core.step(item, self.clock.wall_ms, self.clock.monotonic_ms)
        self._observer.on_step(self, item, step)
        if not self._is_serving:
            self._is_serving = not isinstance(core, Broker) or core.is_serving
        for trace in step.traces:
            self._trace.line(self.name, trace.kind, trace.fields)
            if trace.kind == LOG_CLEANED:
                self._trace.count("segments compacted")
            if trace.kind == REQUEST_FAILED:
                violated(42, "a handler raised", **trace.fields)
        return step

    def _deliver(self, answers: Iterable[_Answer]) -> None:
        for index, answer in enumerate(answers):
            reason = self._observer.on_answer(self) if index else None
            if reason is not None:
                raise ProcessDied(reason)
            if isinstance(answer, Send):
                if self.links is not None:
                    self.links.send(answer)
                continue
            client = self.clients.get(answer.connection_id)
            if client is None:
                continue
            if isinstance(answer, Close):
                self._trace.line(self.name, "close", {"reason": answer.reason})
                client.connection.close_by_broker()
                self._on_disconnected(client.connection)
            else:
                self._answer(client, answer)

    def _answer(self, client: Client, answer: Respond | NoResponse) -> None:
        check(client.correlation_id == answer.correlation_id, "no request waits for this answer",
              waits=client.correlation_id, answered=answer.correlation_id)  # fmt: skip
        check(answer.throttle_ms == 0, "a simulated client has a quota, which no load sets")
        client.correlation_id = None
        if isinstance(answer, Respond):
            self._observer.on_respond(self, answer)
            for records in answer.records:
                records.target.records = b"".join(
                    self.disk.read(part.path, part.position, part.length) for part in records.slices
                )
            frame = encode_response(
                answer.api_key, answer.api_version, answer.correlation_id, answer.message
            )
            client.connection.respond(frame[4:])
        self._take_next_request(client)
