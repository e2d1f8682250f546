"""Real host: drives one `Broker`, or the registry, with sockets, files, the clock and timers.

Theory of operation: inputs that are ready together are one *round*: at most one request of each
connection, so that a flood on one connection delays the others by one request. For each input the
core makes a `Step`, whose storage operations are carried out at once (so that the core's next read
sees them); flushes are shared within the round as far as their order allows; when all are done,
answers go out. Requests that arrive during an fsync form the next round: this is group commit
without a timer. Rounds without a flush follow one another, up to `ROUNDS_IN_A_ROW`, before the host
polls sockets. Requests to peers leave with the answers, in their order among them
(`server/peer_connections.py`).

One thread runs everything. An exception of the core or of the disk leaves memory ahead of the disk,
and recovery is the tested way back. When a write found no free space, the host recovers by itself:
it drops the core, closes the connections that wait for an answer, so that no client gets "ok", and
starts a new core from the files, as after a crash; writes are then refused until there is space.
After any other error, such as a failed fsync, the process ends (`server/system.py` says why).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.data_directory import MACHINE_BOOT_FILE
from broker_sim.core.effects import (
    CancelTimer,
    Close,
    ControlledShutdown,
    Delete,
    Disconnected,
    Input,
    NoResponse,
    PeerAnswer,
    PeerLost,
    Rename,
    Request,
    RequestTime,
    Respond,
    Send,
    SetTimer,
    Start,
    Step,
    Stop,
    StorageSpace,
    TimerFired,
    TimerKey,
    Truncate,
)
from broker_sim.core.endpoint import Endpoint, Listener
from broker_sim.core.membership.cluster_metadata import UNCLEAN_ELECTION, UNCLEAN_ELECTION_BEFORE
from broker_sim.core.parts import BrokerParts
from broker_sim.core.replica.log_manager import STRAY_LOG
from broker_sim.core.replica.replication import BELOW_HIGH_WATERMARK
from broker_sim.server.client_connection import ClientConnection, ConnectionOwner
from broker_sim.server.connections import Connections
from broker_sim.server.faults.rules import FaultRules
from broker_sim.server.metrics import BrokerMetrics
from broker_sim.server.outgoing import Outgoing
from broker_sim.server.peer_connections import PeerConnections
from broker_sim.server.request_memory import RequestMemory
from broker_sim.server.space import RETRY_SECONDS, SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import (
    StorageError,
    StorageFailed,
    StorageFull,
    machine_boot_id,
    monotonic_ms,
    wall_ms,
)

ROUNDS_IN_A_ROW = 16
ROUND_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the requests of a round.

A decoded request may take thirty times its bytes. So the requests that many connections send at
once are decoded round by round.
"""
CHECK_SECONDS_MAX = 5.0
"""Seconds between two searches for connections that have stood still."""

_Answer = Outgoing | Respond | NoResponse | Close | Send
"""Output that leaves when the storage operations before it are done."""

_log = logging.getLogger(__name__)

_WARNINGS = frozenset(
    {
        "damaged-file",
        "corrupt-snapshot",
        "corrupt-checkpoint",
        "log-recovered",
        UNCLEAN_ELECTION,
        UNCLEAN_ELECTION_BEFORE,
        BELOW_HIGH_WATERMARK,
        STRAY_LOG,
        "log-not-cleaned",
        "segment-states-dropped",
        "transaction-load-failed",
        "group-load-failed",
        "registry-truncated",
    }
)
"""Traces of what an operator should know without asking: damage found on disk."""


class Core(Protocol):
    """Core that the host drives: a `Broker`, or the registry."""

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Return all effects of `item`, as `Broker.step` does."""


class BrokerServer:
    """Owns the inputs, timers and connections of one core, inside a running event loop."""

    def __init__(
        self,
        make_core: Callable[[], Core],
        storage: FileStorage,
        config: BrokerConfig,
        space: SpaceGuard,
        metrics: BrokerMetrics | None = None,
        faults: FaultRules | None = None,
    ) -> None:
        """`make_core` returns a core that was not started, on `storage`."""
        self._metrics = metrics
        self.faults = faults
        """Rules at which the broker fails; None for a broker that nobody wants to fail."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that gets an exception when the broker cannot go on."""
        self.serving = asyncio.Event()
        """Event that is set when clients may be let in."""
        self._handed_over: asyncio.Event | None = None
        """Event that is set when other brokers lead this broker's partitions; None before it is
        requested."""
        # The core, its files, and the inputs of its next round.
        self._loop = asyncio.get_running_loop()
        self._make_core = make_core
        self._core: Core | None = None
        """Core under way; None while there is no free space to start a core."""
        self._storage = storage
        self._space = space
        self._warned_low = False
        self._inputs: deque[Input] = deque()
        self._round_bytes = 0
        """Bytes of the requests in `_inputs`, as they came."""
        self._round_scheduled = False
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        self._fired: set[TimerKey] = set()
        """Timers whose input waits for its round; setting or cancelling one takes it back."""
        # Connections, and what each of them uses of the host.
        self.request_memory = RequestMemory(config.integer("queued.max.request.bytes"))
        self._connections = Connections(config)
        self._next_connection_id = 1
        self._peers = PeerConnections(self.submit, self._peer_endpoint, config)
        self._as_owner = ConnectionOwner(
            loop=self._loop,
            frame_bytes_max=config.integer("socket.request.max.bytes"),
            frame_bytes_max_before_login=config.integer("sasl.server.max.receive.size"),
            faults=faults,
            opened=self._connections.add,
            closed=self._closed,
            account_memory=self.request_memory.account,
            forget_memory=self.request_memory.forget,
            round_is_full=lambda: self._round_bytes > ROUND_BYTES_MAX,
            submit=self.submit,
            outgoing=partial(Outgoing, storage=storage),
            topic_name=self._topic_name,
        )

    def start(self) -> None:
        """Recover and load. Raises the error that makes starting impossible."""
        with self._noting_loss():
            try:
                self._begin_core()
            except StorageFull:
                self._space.release(self._loop.time())
                self._begin_core()
        self._check_connections()

    async def hand_over(self, seconds_max: float) -> None:
        """Let other brokers lead this broker's partitions, as far as they can in that time."""
        core = self._core
        if not isinstance(core, Broker) or core.may_stop or self.failed.done():
            return
        self._handed_over = handed_over = asyncio.Event()
        self.failed.add_done_callback(lambda _: handed_over.set())
        self.submit(ControlledShutdown())
        try:
            await asyncio.wait_for(handed_over.wait(), seconds_max)
        except TimeoutError:
            _log.warning("stopping without a controlled shutdown: it took over %g s", seconds_max)

    def stop(self) -> None:
        """Stop cleanly: answers that wait are dropped, files flushed and closed."""
        self._drop_inputs()
        self._cancel_timers()
        if self._core is not None:
            with self._noting_loss():
                self._carry_out_answers(self._step_core(self._core, Stop()))
        for connection in self._connections:
            connection.close("the broker stops", level=logging.INFO)
        self._peers.close()
        self._storage.close()

    def accept(self, listener: Listener | None = None) -> ClientConnection:
        """Return the protocol for a new socket (the factory of `loop.create_server`).

        Raises ConnectionRefusedError if there are too many connections for another TLS handshake.
        """
        connection = ClientConnection(self._as_owner, self._next_connection_id, listener)
        self._next_connection_id += 1
        shakes_hands = listener is not None and listener.protocol.uses_tls
        if shakes_hands and not self._connections.may_shake_hands(connection):
            raise ConnectionRefusedError("too many connections for a TLS handshake")
        return connection

    def clients_were_there(self) -> bool:
        """True if any client uses this host, see `Connections`."""
        return self._connections.clients_were_there()

    def metrics_text(self) -> str:
        """Return the current figures; "" for a host that counts nothing."""
        flushes = self._storage.flush_count
        return "" if self._metrics is None else self._metrics.text(_parts(self._core), flushes)

    # ------------------------------------------------------------------ what connections ask

    def _closed(self, connection: ClientConnection) -> None:
        """Remove a connection that is gone."""
        if self._connections.remove(connection):
            self.submit(Disconnected(connection.connection_id))

    def submit(
        self,
        item: Request | Disconnected | TimerFired | PeerAnswer | PeerLost | ControlledShutdown,
        size_bytes: int = 0,
    ) -> None:
        """Take part in the next round; a request or a peer's answer was so many bytes long."""
        self._round_bytes += size_bytes
        self._inputs.append(item)
        self._schedule_round()

    def _topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        parts = _parts(self._core)
        topic = None if parts is None else parts.image.topic_of_id(topic_id)
        return None if topic is None else topic.name

    # ------------------------------------------------------------------ what peers ask

    def _peer_endpoint(self, peer: int) -> Endpoint | None:
        """Return the endpoint where the core says that the peer listens."""
        return self._core.peer_endpoint(peer) if isinstance(self._core, Broker) else None

    # ------------------------------------------------------------------ rounds

    def _drop_inputs(self) -> None:
        self._inputs.clear()
        self._round_bytes = 0

    def _schedule_round(self) -> None:
        if not self._round_scheduled:
            self._round_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        flushes_before = self._storage.flush_count
        for _ in range(ROUNDS_IN_A_ROW):
            if self.failed.done() or not self._inputs:
                break
            self._one_round()
            if self._storage.flush_count != flushes_before:
                break
        self._round_scheduled = False
        if self._inputs and not self.failed.done():
            self._schedule_round()

    def _one_round(self) -> None:
        inputs, self._inputs = self._inputs, deque()
        self._round_bytes = 0
        answers: list[_Answer] = []
        try:
            if self._core is None:
                self._refuse_inputs(inputs)
                return
            self._look_at_space(self._core)
            for item in inputs:
                if isinstance(item, TimerFired) and not self._take_fired(item.key):
                    continue
                answers += self._step_core(self._core, item, answers)
            self._carry_out_answers(answers)
        except StorageFull as full:
            self._start_anew(full)
        except BaseException as error:  # noqa: BLE001 the process ends with it
            self._fail(error)

    def _step_core(
        self, core: Core, item: Input, before: list[_Answer] | None = None
    ) -> list[_Answer]:
        """Carry out a step and return its answers. The answers `before` it go out first if it
        changes files."""
        began_ns = time.monotonic_ns()
        step = core.step(item, wall_ms(), monotonic_ms())
        self._tell_of_life(core)
        if self._metrics is not None:
            self._metrics.count(item, step, _parts(core))
        if before and any(isinstance(op, Truncate | Delete | Rename) for op in step.storage):
            self._carry_out_answers(before)
            before.clear()
        self._storage.perform(step.storage)
        spent_ns = time.monotonic_ns() - began_ns
        self._set_timers(step)
        for trace in step.traces:
            level = logging.WARNING if trace.kind in _WARNINGS else logging.DEBUG
            if _log.isEnabledFor(level):
                _log.log(level, "%s %s", trace.kind, dict(trace.fields))
        # From here on somebody watches the files of an answer with records.
        responses = (
            Outgoing(response, self._storage)
            if isinstance(response, Respond) and response.records
            else response
            for response in step.responses
        )
        answers: list[_Answer] = [*step.sends, *responses]
        if isinstance(item, Request) and isinstance(core, Broker) and core.times_requests:
            answers += self._step_core(core, RequestTime(item.connection_id, spent_ns))
        return answers

    def _tell_of_life(self, core: Core) -> None:
        """Let clients in: a broker of a cluster waits until it is registered."""
        if not self.serving.is_set() and (not isinstance(core, Broker) or core.is_serving):
            self.serving.set()
        if self._handed_over is not None and isinstance(core, Broker) and core.may_stop:
            self._handed_over.set()

    def _carry_out_answers(self, answers: list[_Answer]) -> None:
        self._storage.barrier()
        for answer in answers:
            self._deliver_answer(answer)

    def _deliver_answer(self, answer: _Answer) -> None:
        if isinstance(answer, Send):
            self._peers.send(answer)
            return
        connection = self._connections.get(answer.connection_id)
        if connection is not None:
            connection.deliver(answer)
        elif isinstance(answer, Outgoing):
            answer.close()

    # ------------------------------------------------------------------ storage

    def _begin_core(self) -> None:
        """Start a new core from the files on disk."""
        self._storage.reset()
        core = self._make_core()
        self._carry_out_answers(self._step_core(core, Start(machine_boot_id())))
        self._core = core
        self._warned_low = False

    def _look_at_space(self, core: Core) -> None:
        is_low = self._space.is_low(self._loop.time())
        if is_low == self._warned_low:
            return
        self._warned_low = is_low
        if is_low:
            _log.error("free space is under log.dir.reserved.bytes: writes are refused")
        else:
            _log.warning("there is free space again: writes are accepted")
        self._carry_out_answers(self._step_core(core, StorageSpace(is_low)))

    def _start_anew(self, full: StorageFull) -> None:
        """Start again after a write found no free space: no client of this round got an answer, and
        memory is ahead of the disk."""
        _log.error("no free space: %s; restarting from disk, with writes refused", full)
        self._core = None
        self._drop_inputs()
        self._cancel_timers()
        # The next core counts its requests from 0 again: no answer to this one may reach it.
        self._peers.close(abort=True)
        for connection in self._connections:
            if connection.awaits_answer:
                connection.close("there was no free space for its request")
        self._space.release(self._loop.time())
        self._restart_core()

    def _restart_core(self) -> None:
        if self.failed.done():
            return
        try:
            self._begin_core()
        except StorageFull as full:
            _log.error("no free space to start: %s", full)
            self._core = None
            self._cancel_timers()
            self._loop.call_later(RETRY_SECONDS, self._restart_core)
        except BaseException as error:  # noqa: BLE001 the process ends with it
            self._fail(error)

    def _refuse_inputs(self, inputs: deque[Input]) -> None:
        for item in inputs:
            if isinstance(item, Request):
                connection = self._connections.get(item.connection_id)
                if connection is not None:
                    connection.close("there is no free space to restart")

    def _fail(self, error: BaseException) -> None:
        if self.failed.done():
            return
        if isinstance(error, StorageFailed):
            self._note_loss()
        self.failed.set_exception(error)

    @contextlib.contextmanager
    def _noting_loss(self) -> Iterator[None]:
        try:
            yield
        except StorageFailed:
            self._note_loss()
            raise

    def _note_loss(self) -> None:
        """Note that acknowledged records may be gone, as after a loss of power: they were not
        flushed.

        The machine goes on, but the next start must not take its boot for the boot of this process.
        """
        self._storage.reset()
        try:
            self._storage.perform([Delete(MACHINE_BOOT_FILE)])
        except StorageError as error:
            _log.critical("remove %s before the next start: %s", MACHINE_BOOT_FILE, error)

    # ------------------------------------------------------------------ timers

    def _cancel_timers(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        self._fired.clear()

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
                        (deadline_ms + 1) / 1000, self._fire_timer, key
                    )
                case CancelTimer():
                    pass

    def _fire_timer(self, key: TimerKey) -> None:
        del self._timers[key]
        self._fired.add(key)
        self.submit(TimerFired(key))

    def _take_fired(self, key: TimerKey) -> bool:
        if key not in self._fired:
            return False
        self._fired.discard(key)
        return True

    def _check_connections(self) -> None:
        now_seconds = self._loop.time()
        self._connections.close_idle(now_seconds)
        self.request_memory.close_stalled(now_seconds)
        idle_seconds_max = self._connections.idle_seconds_max
        pause_seconds = CHECK_SECONDS_MAX
        if idle_seconds_max > 0:
            pause_seconds = min(pause_seconds, idle_seconds_max / 4)
        self._loop.call_later(pause_seconds, self._check_connections)


def _parts(core: Core | None) -> BrokerParts | None:
    """Return the parts of a broker that is open; None for the registry."""
    return core.opened if isinstance(core, Broker) else None
