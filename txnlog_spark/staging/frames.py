"""Frames of the protocol between tasks, the committer and the staging server.

A frame is a type (1 byte), the size of its body (4 bytes, big-endian) and the body. The body of
Data, Close, Stored, Refused, Nonce and Proof is bytes; the other bodies are JSON. Both ends are of
one version of this package: the process that started the server wrote the address that tasks use,
and the proof contains `VERSION`.

    task    Open, Data ..., Close   server  Stored (the path of the file) | Refused
    driver  Forget | Where          server  Done | Address

A task on another machine connects by TLS, and both sides prove that they know the token: the server
answers the client's `Nonce` with a `Proof` of its own certificate, then the client sends its proof.
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
"""Largest body of a frame, in bytes; a larger size means another protocol. The largest bodies are
indexes, with some 35 bytes for each chunk."""
DATA_BYTES_WANTED = 256 * 1024
"""Size of a task's usual Data frame, in bytes."""
DATA_BYTES_MAX = 1024 * 1024
"""Largest Data frame, in bytes; a larger record batch takes several frames."""
NONCE_BYTES = 32
PROOF_BYTES = 32
_HEADER = struct.Struct(">BI")
HEADER_BYTES = _HEADER.size


class Kind(enum.IntEnum):
    """Type of a frame."""

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
    """Identity of the task attempt that staged something.

    `write` names a sink of a query, or is the id of a batch write. `run_id` is the id of one
    planning of the batch: Spark may plan a batch again, in the same run or in another run. `name`
    is unique among all attempts.
    """

    write: str
    batch_id: int
    run_id: str
    name: str

    def encode(self) -> bytes:
        """Return the body of Open."""
        return json.dumps(self).encode()


def query_write(checkpoint: str, query_id: str, sink_name: str) -> str:
    """Return the name of a query's sink, usable as a file name: `TaskAttempt.write`.

    The name needs the path of the checkpoint and the query's id. The path alone is not enough:
    drivers that share a `stagingLocation` may have checkpoints of one path, each in its own
    container. The id alone is not enough: a copy of a checkpoint has the original's query id.
    """
    text = f"{checkpoint}\n{query_id}\n{sink_name}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Forgotten(NamedTuple):
    """Order to forget staged output of a write; every field that is not None narrows the order."""

    write: str
    up_to_batch: int | None = None
    batch_id: int | None = None
    but_run: str | None = None
    run_id: str | None = None

    @property
    def is_final(self) -> bool:
        """True if no attempt that the order covers may stage later."""
        return self.run_id is not None or self == Forgotten(self.write)

    def covers(self, attempt: TaskAttempt) -> bool:
        """True if the order covers this attempt."""
        return (
            attempt.write == self.write
            and (self.up_to_batch is None or attempt.batch_id <= self.up_to_batch)
            and (self.batch_id is None or attempt.batch_id == self.batch_id)
            and (self.but_run is None or attempt.run_id != self.but_run)
            and (self.run_id is None or attempt.run_id == self.run_id)
        )


def frame(kind: Kind, body: bytes | bytearray | memoryview = b"") -> bytes:
    """Return a whole frame."""
    return _HEADER.pack(kind, len(body)) + body


def parse_header(data: bytes | bytearray, body_bytes_max: int = BODY_BYTES_MAX) -> tuple[Kind, int]:
    """Return the type and the body's size. Raises NotAFrame."""
    number, size_bytes = _HEADER.unpack(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise NotAFrame(f"no frame begins with the byte {number}") from None
    if size_bytes > body_bytes_max:
        raise NotAFrame(f"a frame of {size_bytes} bytes")
    return kind, size_bytes


def parse_json(body: bytes) -> Any:
    """Parse a JSON body. Raises NotAFrame."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise NotAFrame(str(error)) from None


def parse_attempt(body: bytes) -> TaskAttempt:
    """Parse the body of Open. Raises NotAFrame."""
    value = parse_json(body)
    try:
        write, batch_id, run_id, name = value
        return TaskAttempt(str(write), int(batch_id), str(run_id), str(name))
    except (TypeError, ValueError) as error:
        raise NotAFrame(f"not an attempt: {error}") from None


def proof(token: bytes, side: str, certificate: bytes, nonce: bytes) -> bytes:
    """Return the proof that `side` knows the token and sees this certificate (DER).

    The proof is bound to the certificate. A man in the middle has another certificate, so he can
    neither pass the proof on nor make one.
    """
    message = b"|".join(
        (b"%d" % VERSION, side.encode(), hashlib.sha256(certificate).digest(), nonce)
    )
    return hmac.digest(token, message, "sha256")
