"""Hostile bytes: the broker lives on, and only the connection that sent them is closed."""

from __future__ import annotations

import random
import struct

import pytest
from support.brokers.probe import ports_of, read_exactly
from support.raw.raw import Connection, message_class

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import ApiKey

pytestmark = pytest.mark.no_kill("looks at the connections of one broker")

FRAME_BYTES_MAX = 104_857_600
RANDOM_FRAMES = 300

METADATA = encode_request(message_class(ApiKey.METADATA)(topics=[]), 9, 7, "raw")


@pytest.fixture
def port(bootstrap) -> int:
    """Return the port of the broker, or of the first broker of a cluster."""
    return ports_of(bootstrap)[0]


def framed(body: bytes) -> bytes:
    """Return the body with its length in front."""
    return struct.pack(">i", len(body)) + body


CLOSING = {
    "length over the limit": struct.pack(">i", FRAME_BYTES_MAX + 1) + b"x" * 100,
    "length 2^31-1": struct.pack(">i", 2**31 - 1),
    "length -1": struct.pack(">i", -1),
    "a TLS hello": bytes.fromhex("1603010200010001fc0303"),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no header": framed(b"\x00"),
    "unknown api key": framed(struct.pack(">hhih", 9999, 0, 1, -1)),
    "negative api key": framed(struct.pack(">hhih", -5, 0, 1, -1)),
    "a version nobody speaks": framed(struct.pack(">hhih", 3, 99, 1, -1)),
    "client id longer than the frame": framed(struct.pack(">hhih", 3, 1, 1, 3000)),
    "array longer than the frame": framed(struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1)),
    "an API for brokers only": framed(struct.pack(">hhih", 4, 0, 1, -1)),
}


def is_healthy(connection: Connection) -> bool:
    """Return True if the broker still answers on this connection."""
    known = connection.ask(message_class(ApiKey.METADATA)(topics=[]), 9).brokers
    return connection.socket.getpeername()[1] in {each.port for each in known}


@pytest.mark.parametrize("name", CLOSING)
def test_a_frame_that_cannot_be_read_closes_its_connection_only(port, name):
    with Connection(port) as bystander, Connection(port) as hostile:
        assert is_healthy(bystander)
        hostile.send_bytes(CLOSING[name])
        assert hostile.closed_by_peer()
        assert is_healthy(bystander)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 11, len(METADATA) - 1])
def test_a_truncated_frame_disturbs_nobody(port, cut):
    with Connection(port) as bystander:
        with Connection(port) as hostile:
            hostile.send_bytes(METADATA[:cut])
        assert is_healthy(bystander)
    with Connection(port) as fresh:
        assert is_healthy(fresh)


def test_a_frame_in_single_bytes_is_answered(port):
    with Connection(port) as slow:
        for position in range(len(METADATA) - 1):
            slow.send_bytes(METADATA[position : position + 1])
        slow.send_bytes(METADATA[-1:])
        assert not slow.closed_by_peer()


def test_an_unknown_api_versions_version_is_answered_in_version_0(port):
    with Connection(port) as connection:
        # Its header is of the newest kind, which ends with (no) tagged fields.
        connection.send_bytes(framed(struct.pack(">hhihb", 18, 99, 1, -1, 0)))
        (size,) = struct.unpack(">i", read_exactly(connection.socket, 4))
        body = read_exactly(connection.socket, size)
        correlation_id, error, count = struct.unpack_from(">ihi", body)
        assert (correlation_id, error) == (1, 35)
        keys = [struct.unpack_from(">h", body, 10 + 6 * index)[0] for index in range(count)]
        assert keys == [18]


@pytest.mark.parametrize(
    ("name", "software_version", "error"),
    [("raw", "1.0-x", 0), ("", "1.0", 42), ("raw", "", 42), ("a b", "1.0", 42)],
)
def test_api_versions_wants_a_proper_name_of_the_client(port, name, software_version, error):
    message = message_class(ApiKey.API_VERSIONS)(
        client_software_name=name, client_software_version=software_version
    )
    with Connection(port) as connection:
        answer = connection.ask(message, 3)
        assert (answer.error_code, bool(answer.api_keys)) == (error, error == 0)
        assert connection.ask(message, 2).error_code == 0


def test_features_that_begin_at_level_0_are_told_from_version_4_on(port):
    # Java clients from 3.3 to 3.8 cannot read an answer with one (KAFKA-17492).
    message = message_class(ApiKey.API_VERSIONS)(
        client_software_name="raw", client_software_version="1"
    )
    with Connection(port) as connection:
        for version in (3, 4):
            features = connection.ask(message, version).supported_features
            assert any(f.min_version == 0 for f in features) == (version == 4)


@pytest.mark.parametrize(
    ("cluster", "node", "version", "error"),
    [
        ("its own", "its own", 5, "NONE"),
        ("another", "its own", 5, "REBOOTSTRAP_REQUIRED"),
        ("its own", "another", 5, "REBOOTSTRAP_REQUIRED"),
        (None, None, 5, "NONE"),
        ("its own", None, 5, "INVALID_REQUEST"),
        (None, "its own", 5, "INVALID_REQUEST"),
        ("another", "another", 4, "NONE"),
    ],
)
def test_a_client_that_means_another_broker_is_told_so(port, cluster, node, version, error):
    """KIP-1242; the connection stays open, and the broker is the one that its metadata says."""
    with Connection(port) as connection:
        found = connection.ask(message_class(ApiKey.METADATA)(topics=[]), 9)
        own_id = next(each.node_id for each in found.brokers if each.port == port)
        message = message_class(ApiKey.API_VERSIONS)(
            client_software_name="raw",
            client_software_version="1",
            cluster_id={"its own": found.cluster_id, "another": "x"}.get(cluster),
            node_id={"its own": own_id, "another": own_id + 100}.get(node, -1),
        )
        answer = connection.ask(message, version)
        told = (error_name(answer.error_code), bool(answer.api_keys))
        assert told == (error, error == "NONE")
        assert is_healthy(connection)


def random_frame(rng: random.Random) -> bytes:
    """Random bytes, or a good request with some bytes changed."""
    if rng.random() < 0.3:
        return framed(rng.randbytes(rng.randrange(1, 200)))
    key = rng.choice([1, 2, 3, 8, 9, 10, 11, 18, 19, 22, 24, 25, 26, 28])
    body = bytearray(struct.pack(">hhih", key, rng.randrange(0, 8), 1, -1))
    body += rng.randbytes(rng.randrange(0, 60))
    if rng.random() < 0.5:
        body = bytearray(METADATA[4:])
        body[rng.randrange(8, len(body))] ^= 1 << rng.randrange(8)
    return framed(bytes(body))


def test_random_frames_leave_the_broker_alive(port):
    rng = random.Random(20260)
    with Connection(port) as bystander:
        for _ in range(RANDOM_FRAMES):
            with Connection(port) as hostile:
                hostile.send_bytes(random_frame(rng))
        assert is_healthy(bystander)
    with Connection(port) as fresh:
        assert is_healthy(fresh)
