"""One connection: answers in the order of requests, bounded memory, hostile bytes close it."""

from __future__ import annotations

import struct

import pytest

from broker_sim.core.effects import Close, NoResponse, Request, Respond
from broker_sim.server.connection import REQUESTS_IN_FLIGHT_MAX, Connection
from txnlog_spark.wire.framing import encode_request, encode_response
from txnlog_spark.wire.messages import APIS, ApiKey


class Transport:
    """Remembers what a connection did to its socket."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, _name: str):
        return ("10.0.0.1", 5)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Owner:
    """A host that only remembers."""

    frame_bytes_max = 1000

    def __init__(self) -> None:
        self.submitted: list[Request] = []
        self.gone: list[Connection] = []

    def opened(self, connection: Connection) -> None:
        pass

    def closed(self, connection: Connection) -> None:
        self.gone.append(connection)

    def submit(self, request) -> None:
        self.submitted.append(request)

    def encode(self, response: Respond) -> bytes:
        if response.message is None:
            raise LookupError("gone")
        if response.message == "broken":
            raise TypeError("not encodable")
        return f"answer {response.correlation_id}".encode()

    def now_seconds(self) -> float:
        return 1.0


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def connection(owner, transport) -> Connection:
    made = Connection(owner, 3)
    made.connection_made(transport)
    return made


def frame(correlation_id: int) -> bytes:
    message = APIS[ApiKey.HEARTBEAT].request(
        group_id="g", generation_id=1, member_id="m", group_instance_id=None
    )
    return encode_request(message, 4, correlation_id, "c")


def answer(correlation_id: int, message="ok") -> Respond:
    return Respond(3, correlation_id, ApiKey.HEARTBEAT, 4, message)


def test_requests_go_to_the_core_in_order_with_who_asked(connection, owner):
    data = frame(1) + frame(2)
    connection.data_received(data[:7])
    connection.data_received(data[7:])
    assert [(r.correlation_id, r.connection_id, r.client_host) for r in owner.submitted] == [
        (1, 3, "10.0.0.1"),
        (2, 3, "10.0.0.1"),
    ]


def test_answers_leave_in_the_order_of_requests(connection, transport):
    connection.data_received(frame(1) + frame(2) + frame(3))
    connection.deliver(answer(3))
    connection.deliver(answer(2))
    assert transport.written == []
    connection.deliver(answer(1))
    assert transport.written == [b"answer 1", b"answer 2", b"answer 3"]
    assert connection.is_idle


def test_a_request_without_answer_does_not_block_the_ones_behind_it(connection, transport):
    connection.data_received(frame(1) + frame(2))
    connection.deliver(answer(2))
    connection.deliver(NoResponse(3, 1))
    assert transport.written == [b"answer 2"]


def test_equal_correlation_ids_are_answered_one_by_one(connection, transport):
    connection.data_received(frame(1) + frame(1))
    connection.deliver(answer(1))
    assert not connection.is_idle
    connection.deliver(answer(1))
    assert transport.written == [b"answer 1", b"answer 1"]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 1001),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, 18, 0, 1),
        struct.pack(">ihhih", 10, 3, 9, 1, 500),
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


def test_another_version_that_is_not_spoken_closes_the_connection(connection, transport):
    request = struct.pack(">hhih", ApiKey.HEARTBEAT, 99, 7, -1)
    connection.data_received(struct.pack(">i", len(request)) + request)
    assert transport.closed


def test_reading_stops_while_too_many_requests_wait(connection, transport):
    for number in range(REQUESTS_IN_FLIGHT_MAX):
        connection.data_received(frame(number))
    assert not transport.reading
    connection.deliver(answer(0))
    assert transport.reading


def test_a_peer_that_does_not_read_stops_encoding_and_reading(connection, transport):
    connection.data_received(frame(1) + frame(2))
    connection.pause_writing()
    assert not transport.reading
    connection.deliver(answer(1))
    assert transport.written == []
    connection.resume_writing()
    assert transport.written == [b"answer 1"]
    assert transport.reading


@pytest.mark.parametrize("message", [None, "broken"])
def test_an_answer_that_cannot_be_made_costs_only_its_connection(connection, transport, message):
    connection.data_received(frame(1))
    connection.deliver(answer(1, message))
    assert transport.closed


def test_the_core_can_close_a_connection(connection, transport, owner):
    connection.data_received(frame(1))
    connection.deliver(Close(3, "because"))
    assert transport.closed
    connection.connection_lost(None)
    assert owner.gone == [connection]
    connection.deliver(answer(1))
    assert transport.written == []


def test_an_encoded_response_is_what_a_client_reads():
    message = APIS[ApiKey.HEARTBEAT].response(throttle_time_ms=0, error_code=0)
    data = encode_response(ApiKey.HEARTBEAT, 4, 9, message)
    assert struct.unpack(">ii", data[:8]) == (len(data) - 4, 9)
