"""What tasks, the committer and the staging server say to each other, as frames.

A frame is a type (1 byte), the size of its body (4 bytes, big-endian) and the body: bytes where it
carries staged data, JSON elsewhere. Both ends are of one version of this package: the address that
a task is given was written by the process that started the server, and `VERSION` is in its proof.

    task    Open, Data ..., Close   server  Stored (the path of the file) | Refused
    driver  Forget | Where          server  Done | Address

A task on another machine comes by TLS and first proves, and is proved, the knowledge of the token:
the server sends `Proof` of its own certificate for the `Nonce` of the client, then the client does.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import struct
from typing import Any, NamedTuple

VERSION = 2
BODY_BYTES_MAX = 256 * 1024 * 1024
"""A frame that says more is not one of ours. The largest are indexes: some 35 bytes a chunk."""
DATA_BYTES_WANTED = 256 * 1024
"""A task sends about this much at once."""
DATA_BYTES_MAX = 1024 * 1024
"""More of one record batch takes several frames."""
NONCE_BYTES = 32
PROOF_BYTES = 32
_HEADER = struct.Struct(">BI")
HEADER_BYTES = _HEADER.size


class Kind(enum.IntEnum):
    """The type of a frame."""

    NONCE = 1
    PROOF = 2
    OPEN = 3
    DATA = 4
    CLOSE = 5
    STORED = 6
    REFUSED = 7
    WHERE = 8
    ADDRESS = 9
    FORGET = 10
    DONE = 11


class NotAFrame(ValueError):
    """The other side does not speak this protocol."""


class TaskAttempt(NamedTuple):
    """Which task attempt staged something.

    `write` names a query's sink, or is the id of a batch write; `run_id` is of one planning of the
    batch: Spark may plan a batch again, in the same run or in another; `name` is unique among all
    attempts.
    """

    write: str
    batch_id: int
    run_id: str
    name: str

    def encode(self) -> bytes:
        """The body of Open."""
        return json.dumps(self).encode()


def query_write(checkpoint: str, query_id: str, sink_name: str) -> str:
    """Name what one sink of a query stages, as a file may be called: `TaskAttempt.write`.

    Drivers that share a `stagingLocation` may have checkpoints of one path, each in a container of
    its own, so the path alone names no query; a copy of a checkpoint has the original's query id,
    so neither does the id.
    """
    text = f"{checkpoint}\n{query_id}\n{sink_name}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Forgotten(NamedTuple):
    """What may be removed of a write; every field that is not None narrows it."""

    write: str
    up_to_batch: int | None = None
    batch_id: int | None = None
    but_run: str | None = None
    run_id: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing that it covers may come later."""
        return self.run_id is not None or self == Forgotten(self.write)

    def covers(self, attempt: TaskAttempt) -> bool:
        """Whether this attempt is meant."""
        return (
            attempt.write == self.write
            and (self.up_to_batch is None or attempt.batch_id <= self.up_to_batch)
            and (self.batch_id is None or attempt.batch_id == self.batch_id)
            and (self.but_run is None or attempt.run_id != self.but_run)
            and (self.run_id is None or attempt.run_id == self.run_id)
        )


def frame(kind: Kind, body: bytes | bytearray | memoryview = b"") -> bytes:
    """A whole frame."""
    return header(kind, len(body)) + body


def header(kind: Kind, body_bytes: int) -> bytes:
    """What is before a body of so many bytes."""
    return _HEADER.pack(kind, body_bytes)


def json_frame(kind: Kind, value: Any) -> bytes:
    """A frame with a JSON body."""
    return frame(kind, json.dumps(value).encode())


def parse_header(data: bytes | bytearray, body_bytes_max: int = BODY_BYTES_MAX) -> tuple[Kind, int]:
    """The type and the size of the body. Raises NotAFrame."""
    number, size_bytes = _HEADER.unpack(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise NotAFrame(f"no frame begins with the byte {number}") from None
    if size_bytes > body_bytes_max:
        raise NotAFrame(f"a frame of {size_bytes} bytes")
    return kind, size_bytes


def parse_json(body: bytes) -> Any:
    """The value of a JSON body. Raises NotAFrame."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise NotAFrame(str(error)) from None


def parse_attempt(body: bytes) -> TaskAttempt:
    """The body of Open. Raises NotAFrame."""
    return attempt_of(parse_json(body))


def attempt_of(value: Any) -> TaskAttempt:
    """An TaskAttempt as JSON has it. Raises NotAFrame."""
    try:
        write, batch_id, run_id, name = value
        return TaskAttempt(str(write), int(batch_id), str(run_id), str(name))
    except (TypeError, ValueError) as error:
        raise NotAFrame(f"not an attempt: {error}") from None


def proof(token: bytes, side: str, certificate: bytes, nonce: bytes) -> bytes:
    """That `side` knows the token and sees this certificate (DER) on the connection.

    Bound to the certificate, it is of no use on a connection through anybody else: a man in
    the middle has another certificate, and cannot make a proof for it.
    """
    message = b"|".join(
        (b"%d" % VERSION, side.encode(), hashlib.sha256(certificate).digest(), nonce)
    )
    return hmac.digest(token, message, "sha256")
