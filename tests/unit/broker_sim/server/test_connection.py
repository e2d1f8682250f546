"""A connection: one request at a time, bounded memory, and hostile bytes that close it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from broker_sim.core.effects import Close, NoResponse, Request, Respond
from broker_sim.server.client_connection import (
    PIECE_BYTES,
    READ_AHEAD_BYTES,
    TURN_BYTES,
    ClientConnection,
)
from broker_sim.server.outgoing import Outgoing
from broker_sim.server.request_memory import FREE_BYTES, RequestMemory
from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey


class Transport:
    """Remembers what a connection did to its socket."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False
        self.waiting_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def abort(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str):
        return ("10.0.0.1", 5) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Answer(Outgoing):
    """An answer of a text, of so many bytes, or one that cannot be made."""

    def __init__(self, response: Respond) -> None:
        super().__init__(response, None)
        self._data: bytes | None = None

    def read(self, size_bytes: int) -> bytes:
        if self._data is None:
            self._data = self._encode(self._response.message)
        data, self._data = self._data[:size_bytes], self._data[size_bytes:]
        return data

    def _encode(self, message) -> bytes:
        if message is None:
            raise LookupError("gone")
        if message == "broken":
            raise TypeError("not encodable")
        if isinstance(message, int):
            return bytes(message)
        return f"answer {self.correlation_id}".encode()


class Owner:
    faults = None
    frame_bytes_max = 1_000_000
    is_full = False

    def __init__(self) -> None:
        self.loop = self
        self.request_memory = RequestMemory(200_000)
        self.account_memory = self.request_memory.account
        self.forget_memory = self.request_memory.forget
        self.later: list[Callable[[], None]] = []
        self.submitted: list[Request] = []
        self.gone: list[ClientConnection] = []
        self.mutes: list[Mute] = []

    def opened(self, connection: ClientConnection) -> None:
        pass

    def closed(self, connection: ClientConnection) -> None:
        self.gone.append(connection)

    def round_is_full(self) -> bool:
        return self.is_full

    def submit(self, request, size_bytes) -> None:
        self.submitted.append(request)

    def outgoing(self, response: Respond) -> Answer:
        return Answer(response)

    def call_soon(self, act: Callable[[], None]) -> None:
        self.later.append(act)

    def call_later(self, after_seconds: float, act: Callable[[], None]) -> Mute:
        self.mutes.append(Mute(after_seconds))
        return self.mutes[-1]


@dataclass
class Mute:
    """The time for which a connection is not heard."""

    after_seconds: float
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def connection(owner, transport) -> ClientConnection:
    return connected(owner, 3, transport)


def connected(owner: Owner, number: int, transport: Transport) -> ClientConnection:
    made = ClientConnection(owner, number)
    made.connection_made(transport)
    return made


def frame(correlation_id: int, group_id: str = "g") -> bytes:
    message = APIS[ApiKey.HEARTBEAT].request(group_id=group_id, generation_id=1, member_id="m")
    return encode_request(message, 4, correlation_id, "c")


def answer(correlation_id: int, message="ok") -> Respond:
    return Respond(3, correlation_id, ApiKey.HEARTBEAT, 4, message)


def correlation_ids(owner) -> list[int]:
    return [request.correlation_id for request in owner.submitted]


def test_a_request_goes_to_the_core_with_who_asked(connection, owner):
    data = frame(1)
    connection.data_received(data[:7])
    assert owner.submitted == []
    connection.data_received(data[7:])
    (request,) = owner.submitted
    assert (request.correlation_id, request.connection_id, request.client_host) == (
        1, 3, "10.0.0.1",
    )  # fmt: skip


def test_the_next_request_is_looked_at_when_the_one_before_is_answered(
    connection, owner, transport
):
    connection.data_received(frame(1) + frame(2) + frame(3))
    assert correlation_ids(owner) == [1]
    connection.deliver(answer(1))
    assert correlation_ids(owner) == [1, 2]
    connection.deliver(answer(2))
    connection.deliver(answer(3))
    assert transport.written == [b"answer 1", b"answer 2", b"answer 3"]
    assert connection.is_idle


def test_what_was_sent_before_the_peer_left_is_carried_out(connection, owner, transport):
    connection.data_received(frame(1) + frame(2) + frame(3) + frame(4)[:-1])
    assert connection.eof_received()
    connection.deliver(NoResponse(3, 1))
    connection.deliver(NoResponse(3, 2))
    assert (correlation_ids(owner), transport.closed) == ([1, 2, 3], False)
    connection.deliver(NoResponse(3, 3))
    assert (correlation_ids(owner), transport.closed) == ([1, 2, 3], True)


def test_a_peer_that_sends_no_more_gets_the_rest_of_its_answer(connection, transport, monkeypatch):
    connection.data_received(frame(1))
    monkeypatch.setattr(transport, "write", lambda data: connection.pause_writing())
    connection.deliver(answer(1, 2 * PIECE_BYTES))
    assert connection.eof_received()
    monkeypatch.undo()
    connection.resume_writing()
    assert [len(data) for data in transport.written] == [PIECE_BYTES]
    assert transport.closed


def test_who_sends_no_more_and_waits_for_a_long_poll_or_for_nothing_is_closed(owner):
    for data in (b"", frame(1), frame(1)[:-1]):
        connection = connected(owner, 3, Transport())
        connection.data_received(data)
        assert not connection.eof_received()


def test_a_request_is_decoded_after_the_round_when_that_is_full(connection, owner):
    owner.is_full = True
    connection.data_received(frame(1) + frame(2))
    assert (owner.submitted, owner.later) == ([], [connection.go_on])
    assert connection.eof_received()
    owner.later.pop()()
    assert (owner.submitted, owner.later) == ([], [connection.go_on])
    owner.is_full = False
    owner.later.pop()()
    assert (correlation_ids(owner), owner.later) == ([1], [])


def test_an_answer_that_nobody_waits_for_is_not_sent(connection, transport):
    connection.data_received(frame(1))
    connection.deliver(answer(7))
    connection.deliver(answer(1))
    connection.deliver(answer(1))
    assert transport.written == [b"answer 1"]


def test_equal_correlation_ids_are_answered_one_by_one(connection, owner, transport):
    connection.data_received(frame(1) + frame(1))
    connection.deliver(answer(1))
    assert len(owner.submitted) == 2
    connection.deliver(answer(1))
    assert transport.written == [b"answer 1", b"answer 1"]


@pytest.mark.invariant(67)
@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 1_000_001),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, 18, 0, 1),
        struct.pack(">ihhih", 10, 3, 9, 1, 500),
        struct.pack(">ihhih", 10, ApiKey.HEARTBEAT, 99, 7, -1),
    ],
)
def test_bytes_that_are_no_request_close_the_connection(connection, owner, transport, data):
    connection.data_received(data)
    assert transport.closed
    assert owner.submitted == []
    connection.data_received(frame(1))
    assert owner.submitted == []


def test_an_api_versions_request_of_the_future_is_answered_in_version_0(connection, transport):
    request = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1)
    connection.data_received(struct.pack(">i", len(request)) + request)
    assert not transport.closed
    size, correlation_id, error = struct.unpack(">iih", transport.written[0][:10])
    assert (size, correlation_id, error) == (len(transport.written[0]) - 4, 7, 35)


def test_reading_stops_when_enough_waits_behind_a_request(connection, owner, transport):
    many = READ_AHEAD_BYTES // len(frame(0)) + 2
    connection.data_received(b"".join(frame(n) for n in range(many)))
    assert correlation_ids(owner) == [0]
    assert not transport.reading
    number = 0
    while not transport.reading:
        connection.deliver(answer(number))
        number += 1
    assert 0 < number < 5
    assert correlation_ids(owner) == list(range(number + 1))


def test_a_large_frame_is_read_to_its_end(connection, owner, transport):
    size = 4 * READ_AHEAD_BYTES
    data = frame(1, "g" * 30_000)
    connection.data_received(struct.pack(">i", size) + data[4:])
    assert transport.reading
    connection.data_received(bytes(size + 4 - len(data)))
    assert correlation_ids(owner) == [1]
    assert connection.buffered_bytes == 0


def test_a_peer_that_does_not_read_stops_sending_and_taking_requests(connection, owner, transport):
    connection.data_received(frame(1) + frame(2))
    connection.pause_writing()
    connection.deliver(answer(1))
    assert transport.written == []
    assert correlation_ids(owner) == [1]
    connection.data_received(frame(5) * (READ_AHEAD_BYTES // len(frame(5)) + 1))
    assert not transport.reading
    connection.resume_writing()
    assert transport.written == [b"answer 1"]
    assert correlation_ids(owner) == [1, 2]


def test_an_answer_is_handed_over_in_pieces_as_long_as_the_peer_reads(
    connection, transport, monkeypatch
):
    connection.data_received(frame(1) + frame(2))
    write = transport.write

    def full_after_two(data) -> None:
        write(data)
        if len(transport.written) == 2:
            connection.pause_writing()

    monkeypatch.setattr(transport, "write", full_after_two)
    connection.deliver(answer(1, 3 * PIECE_BYTES + 5))
    assert [len(data) for data in transport.written] == [PIECE_BYTES] * 2
    connection.resume_writing()
    assert sum(len(data) for data in transport.written) == 3 * PIECE_BYTES + 5


def test_a_large_answer_lets_others_have_their_turn(connection, owner, transport):
    connection.data_received(frame(1) + frame(2))
    size = 3 * TURN_BYTES
    connection.deliver(answer(1, size))
    while owner.later:
        assert correlation_ids(owner) == [1]
        assert sum(map(len, transport.written)) < size
        owner.later.pop()()
    assert sum(map(len, transport.written)) == size
    assert correlation_ids(owner) == [1, 2]


def test_a_client_over_its_quota_gets_its_answer_and_is_not_heard_for_a_while(
    connection, owner, transport
):
    connection.data_received(frame(1) + frame(2))
    connection.deliver(replace(answer(1), throttle_ms=700))
    assert (transport.written, [m.after_seconds for m in owner.mutes]) == ([b"answer 1"], [0.7])
    assert (correlation_ids(owner), transport.reading) == ([1], False)
    connection.data_received(frame(3))
    assert correlation_ids(owner) == [1]
    connection.unmute()
    assert (correlation_ids(owner), transport.reading) == ([1, 2], True)
    connection.deliver(NoResponse(3, 2, throttle_ms=5))
    assert (correlation_ids(owner), transport.reading) == ([1, 2], False)
    connection.unmute()
    assert correlation_ids(owner) == [1, 2, 3]


def test_a_muted_client_that_leaves_is_heard_to_its_end_and_a_lost_one_is_forgotten(
    connection, owner, transport
):
    connection.data_received(frame(1) + frame(2))
    connection.deliver(replace(answer(1), throttle_ms=700))
    assert connection.eof_received()
    assert not transport.closed
    connection.unmute()
    connection.deliver(replace(answer(2), throttle_ms=700))
    assert (correlation_ids(owner), transport.closed) == ([1, 2], True)
    connection.connection_lost(None)
    assert owner.mutes[-1].is_cancelled


def test_bytes_that_only_wait_to_go_are_no_progress(connection, transport):
    connection.data_received(frame(1))
    before = connection.bytes_moved
    transport.waiting_bytes = len(b"answer 1")
    connection.deliver(answer(1))
    assert connection.bytes_moved == before
    transport.waiting_bytes = 0
    assert connection.bytes_moved > before


def partial_frame(size: int, received: int) -> bytes:
    return struct.pack(">i", size) + bytes(received - 4)


@pytest.mark.invariant(73)
def test_large_requests_share_one_account_and_one_always_goes_on(owner):
    transports = [Transport() for _ in range(3)]
    members = [connected(owner, number, each) for number, each in enumerate(transports)]
    for member in members:
        member.data_received(partial_frame(900_000, FREE_BYTES + 90_000))
    assert owner.request_memory.held_bytes == 270_000
    assert [t.reading for t in transports] == [True, True, True]
    members[0].data_received(bytes(1))
    assert [t.reading for t in transports] == [False, True, True], "the third has the turn"
    members[2].data_received(bytes(700_000))
    assert transports[2].reading
    members[2].connection_lost(None)
    assert owner.request_memory.held_bytes == 180_001
    assert [t.reading for t in transports[:2]] == [True, True]


def test_who_stalls_with_the_turn_is_closed_while_others_wait(owner):
    transports = [Transport(), Transport()]
    members = [connected(owner, number, each) for number, each in enumerate(transports)]
    for member in members:
        member.data_received(partial_frame(900_000, FREE_BYTES + 150_000))
    owner.request_memory.close_stalled(0.5)
    members[0].data_received(bytes(1))
    for now_seconds in (1.0, 8.0):
        owner.request_memory.close_stalled(now_seconds)
    members[1].data_received(bytes(1))
    for now_seconds in (10.0, 19.0):
        owner.request_memory.close_stalled(now_seconds)
    assert not transports[1].closed
    owner.request_memory.close_stalled(21.0)
    assert transports[1].closed
    assert transports[0].reading


@pytest.mark.parametrize("message", [None, "broken"])
def test_an_answer_that_cannot_be_made_costs_only_its_connection(connection, transport, message):
    connection.data_received(frame(1))
    connection.deliver(answer(1, message))
    assert transport.closed


def test_the_core_can_close_a_connection(connection, transport, owner):
    connection.data_received(frame(1) + frame(2))
    connection.deliver(Close(3, "because"))
    assert transport.closed
    assert correlation_ids(owner) == [1]
    connection.connection_lost(None)
    assert owner.gone == [connection]
    connection.deliver(answer(1))
    assert transport.written == []
