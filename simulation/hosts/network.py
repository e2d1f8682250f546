"""A network in memory: connections between clients and brokers, in virtual time.

As TCP does, a connection keeps the order of its bytes and delivers them once or breaks. So loss is
loss of the connection: of a request on its way, or of an answer after the broker did the work. A
client that gives up closes its end, but what it sent may still arrive: that is how a late EndTxn or
Produce meets a broker that has moved on. An answer to it breaks the connection.
Delays are drawn per message, with rare long ones.

A direction between two machines may be closed: what is sent that way is held back, as by TCP
which sends it again and again, and arrives when the direction is open again, if somebody is left.
Nobody can connect by it meanwhile. A clogged one holds back as well, and lets connect. Each
process has a machine of its own, but that all drivers of a query run on one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from simulation.hosts.scheduler import Scheduler
from simulation.scenario import LinkConditions
from simulation.trace import Trace
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.framing import decode_body
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.messages import Message

DELAY_US_MIN, DELAY_US_MAX = 200, 3_000
LATE_US_MAX = 6_000_000
SERVER_PREFIXES = ("broker-", "registry")
"""Prefixes of the names of processes that others connect to."""
SILENT_SHARE = 0.3
"""Share of the broken connections that the client learns of only by its own timeout."""


class ClientEnd(Protocol):
    """Client's end of a connection, and the events that it hears."""

    name: str

    def on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        """Take an answer, without its length prefix."""

    def on_closed(self, connection: SimulatedConnection) -> None:
        """Hear that the connection is broken."""


class BrokerEnd(Protocol):
    """End of a connection at the broker's host, and the events that it hears."""

    name: str

    @property
    def incarnation(self) -> int:
        """Number of the broker's starts; -1 while nobody can connect: it is down, or not ready."""

    def on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        """Take a request, without its length prefix."""

    def on_ended(self, connection: SimulatedConnection) -> None:
        """Hear that the client's end is closed; its requests have arrived."""

    def on_disconnected(self, connection: SimulatedConnection) -> None:
        """Hear that the connection broke."""


class SimulatedConnection:
    """A connection to one incarnation of a broker."""

    def __init__(
        self, network: Network, connection_id: int, client: ClientEnd, broker: BrokerEnd
    ) -> None:
        self.connection_id = connection_id
        self.decode = network.decode
        self.client_open = True
        self.broker_open = True
        self._network = network
        self._client = client
        self._broker = broker
        self._incarnation = broker.incarnation
        self._to_broker = (machine_of(client.name), broker.name)
        self._to_client = (broker.name, machine_of(client.name))
        self._to_broker_us = 0
        self._to_client_us = 0

    @property
    def is_left(self) -> bool:
        """True if the client has closed its end, and the broker has heard it and kept its own."""
        was_heard = self._to_broker_us < self._network.now_us
        return self.broker_open and not self.client_open and was_heard

    @property
    def _broker_there(self) -> bool:
        return self.broker_open and self._broker.incarnation == self._incarnation

    def request(self, frame: bytes, *, may_be_late: bool = True, is_late: bool = False) -> None:
        """Send a frame to the broker; with `is_late` it arrives late for sure."""
        if self._is_lost("request"):
            return

        def arrive() -> None:
            if self._broker_there:
                self._broker.on_frame(self, frame)
                if is_duplicate:
                    self._send_again(frame)

        is_duplicate = may_be_late and not is_late and self._network.is_duplicate()
        if is_duplicate:
            self._close_client_end()
        elif is_late or (may_be_late and self._network.is_late()):
            self._network.trace.line("network", "request-late", {"id": self.connection_id})
            self._network.trace.fault("request late", self._to_broker[1])
            self._to_broker_us = self._network.after_long(self._to_broker_us)
            self._network.deliver(0, self._client_gives_up)
        self._to_broker_us = self._network.deliver(self._to_broker_us, arrive, self._to_broker)

    def _is_lost(self, message: str) -> bool:
        """Draw whether a message is lost, and the connection with it."""
        if not self._network.breaks():
            return False
        self._network.trace.line("network", f"{message}-lost", {"id": self.connection_id})
        self._network.trace.fault(f"{message} lost", self._to_broker[1])
        self.cut()
        return True

    def _close_client_end(self) -> None:
        """Close the client's end, which hears of it soon; its request still arrives."""
        self.client_open = False

        def hear() -> None:
            self._client.on_closed(self)
            self._send_end()

        self._network.deliver(0, hear)

    def _send_end(self) -> None:
        """Tell the broker, after all requests, that the client's end is closed."""
        self._to_broker_us = self._network.deliver(
            self._to_broker_us, self._broker_hears_end, self._to_broker
        )

    def _send_again(self, frame: bytes) -> None:
        """Send the same bytes later on another connection; nobody waits for the answer."""

        def arrive() -> None:
            copy = self._network.connect(self._client, self._broker)
            if copy is None:
                return
            copy.client_open = False
            self._network.trace.line("network", "request-again", {"id": copy.connection_id})
            self._network.trace.fault("duplicate request", self._broker.name)
            self._broker.on_frame(copy, frame)
            self._broker.on_ended(copy)

        self._network.deliver(self._network.when_again(), arrive, self._to_broker)

    def respond(self, frame: bytes) -> None:
        """Send a frame to the client."""
        if not self.broker_open:
            return
        if self._is_lost("answer"):
            return

        def arrive() -> None:
            if self.client_open:
                self._client.on_frame(self, frame)
            else:
                self._network.deliver(0, self._broker_hears)

        self._to_client_us = self._network.deliver(self._to_client_us, arrive, self._to_client)

    def close(self) -> None:
        """Close the client's end; its earlier requests still arrive."""
        if self.client_open:
            self.client_open = False
            self._send_end()

    def close_by_broker(self) -> None:
        """Close the broker's end, after the answers that it has sent."""
        self.broker_open = False
        self._to_client_us = self._network.deliver(
            self._to_client_us, self._client_hears, self._to_client
        )

    def cut(self, *, always_heard: bool = False) -> None:
        """Break the connection now: messages on their way are lost."""
        was_there, self.broker_open = self.broker_open, False
        if was_there and self._broker.incarnation == self._incarnation:
            self._network.deliver(0, lambda: self._broker.on_disconnected(self))
        if always_heard or self._network.rng.random() >= SILENT_SHARE:
            self._network.deliver(0, self._client_hears)

    def _broker_hears_end(self) -> None:
        if self._broker_there:
            self._broker.on_ended(self)

    def _broker_hears(self) -> None:
        if self._broker_there:
            self.broker_open = False
            self._broker.on_disconnected(self)

    def _client_gives_up(self) -> None:
        self._client_hears()
        # What was to arrive late has arrived already: no answer is left by which the broker hears.
        if self._to_broker_us < self._network.now_us:
            self._to_broker_us = self._network.deliver(0, self._broker_hears_end, self._to_broker)

    def _client_hears(self) -> None:
        if self.client_open:
            self.client_open = False
            self._client.on_closed(self)


Direction = tuple[str, str]
"""The names of the sender and of the receiver."""


def machine_of(name: str) -> str:
    """Return the machine of a process."""
    return name.partition("-driver-")[0]


def _server_of(direction: Direction | None) -> str:
    """Return the broker or the registry that a message goes to, else the one that it comes from.

    That is "" for an event that does not go by the network.
    """
    names = reversed(direction or ())
    return next((name for name in names if name.startswith(SERVER_PREFIXES)), "")


class Network:
    """Connections of a simulation."""

    def __init__(
        self,
        scheduler: Scheduler,
        trace: Trace,
        rng: random.Random,
        duplicates: random.Random | None = None,
    ) -> None:
        """`duplicates` draws the requests that come twice: it was added later than `rng`."""
        self.weather = LinkConditions()
        self.decode = DecodedMessages()
        """For both ends of all connections."""
        self.trace = trace
        self.rng = rng
        self.duplicates = duplicates or random.Random("duplicates")
        """Generator that draws which requests come twice, and when."""
        self._scheduler = scheduler
        self._next_connection_id = 1
        self.machines: dict[str, None] = {}
        """Machines that have connected to a broker, in the order in which they did."""
        self._cut_off: set[Direction] = set()
        self._clogged: dict[Direction, int] = {}
        """Count of the clogs of each clogged direction."""
        self._held: list[tuple[Direction | None, Callable[[], None]]] = []
        """Deliveries that are held back, in their order."""

    @property
    def now_us(self) -> int:
        """Virtual time in microseconds."""
        return self._scheduler.now_us

    def reaches(self, one: str, other: str) -> bool:
        """True if two processes hear each other, as it takes to connect."""
        return (one, other) not in self._cut_off and (other, one) not in self._cut_off

    def cut_off(self, *directions: Direction) -> None:
        """Hold back all messages of these directions from now on."""
        self._cut_off.update(directions)

    def open_again(self, *directions: Direction) -> None:
        """Open the directions; held-back messages arrive now."""
        self._cut_off.difference_update(directions)
        self._let_arrive()

    def clog(self, direction: Direction) -> None:
        """Hold back the messages that are sent this way; a direction counts its clogs."""
        self._clogged[direction] = self._clogged.get(direction, 0) + 1

    def unclog(self, direction: Direction) -> None:
        """End one `clog` of a direction, unless all have been ended."""
        times = self._clogged.pop(direction, 0)
        if times > 1:
            self._clogged[direction] = times - 1
        if times > 0:
            self._let_arrive()

    def unclog_all(self) -> None:
        """End all clogs; held-back messages arrive now."""
        self._clogged.clear()
        self._let_arrive()

    def _let_arrive(self) -> None:
        held, self._held = self._held, []
        for direction, arrive in held:
            self._arrive(direction, arrive)

    def _arrive(self, direction: Direction | None, arrive: Callable[[], None]) -> None:
        if direction in self._cut_off or direction in self._clogged:
            self.trace.count("message held back")
            self._held.append((direction, arrive))
        else:
            arrive()

    def connect(self, client: ClientEnd, broker: BrokerEnd) -> SimulatedConnection | None:
        """Return a connection; None if the broker is down, or does not hear the client."""
        machine = machine_of(client.name)
        if broker.incarnation < 0 or not self.reaches(machine, broker.name):
            return None
        self.machines.setdefault(machine)
        connection = SimulatedConnection(self, self._next_connection_id, client, broker)
        self._next_connection_id += 1
        return connection

    def breaks(self) -> bool:
        """True if this message breaks its connection."""
        return self.weather.connection_loss > self.rng.random()

    def is_late(self) -> bool:
        """True if this request's client gives up, and the request arrives later."""
        return self.weather.late > 0.0 and self.weather.late > self.rng.random()

    def is_duplicate(self) -> bool:
        """True if this request's client gives up, and the request arrives twice."""
        chance = self.weather.duplicate
        return chance > 0.0 and chance > self.duplicates.random()

    def when_again(self) -> int:
        """Draw the earliest time at which the second of two equal requests arrives."""
        return self._scheduler.now_us + self.duplicates.randint(0, LATE_US_MAX)

    def after_long(self, not_before_us: int) -> int:
        """Draw the earliest time at which a late request arrives."""
        return max(not_before_us, self._scheduler.now_us + self.rng.randint(0, LATE_US_MAX))

    def delay_us(self, direction: Direction | None = None) -> int:
        """Draw the delay of a message that goes this way."""
        if self.weather.spike > self.rng.random():
            self.trace.fault("delay", _server_of(direction))
            return self.rng.randint(DELAY_US_MAX, max(DELAY_US_MAX, self.weather.spike_ms * 1000))
        return self.rng.randint(DELAY_US_MIN, DELAY_US_MAX)

    def deliver(
        self, not_before_us: int, arrive: Callable[[], None], direction: Direction | None = None
    ) -> int:
        """Schedule an arrival after the earlier ones of its connection; returns when it is."""
        now_us = self._scheduler.now_us
        at_us = max(not_before_us, now_us + self.delay_us(direction))
        self._scheduler.after(at_us - now_us, partial(self._arrive, direction, arrive))
        return at_us


class DecodedMessages:
    """Messages that a run has decoded; called as `decode_body` is."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, int, int, bytes], Message] = {}

    def __call__(
        self, message_class: Any, version: int, body: memoryview, elements_max: int
    ) -> Message:
        """Return the message of these bytes, the same object each time. Raises as `decode_body`."""
        key = message_class, version, elements_max, bytes(body)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = decode_body(message_class, version, body, elements_max)
        return known

    def check(self) -> None:
        """Raises InvariantViolation when a message has not the bytes any more that it came of."""
        for (_, version, _, body), message in self._known.items():
            check(encode_message(message, version) == body, "a decoded message was changed",
                  message=message, version=version)  # fmt: skip
