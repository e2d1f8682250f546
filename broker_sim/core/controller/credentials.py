"""SCRAM credentials of a user, as the broker stores them: keys that reveal no password."""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ScramMechanism(enum.IntEnum):
    """Numbered as in requests (Kafka's `ScramMechanism`)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism(self) -> str:
        """Its name in SASL, such as SCRAM-SHA-256."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """Its hash function's name."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()


SECRET_FIELDS = frozenset({"salt", "stored_key", "server_key"})
"""Secret fields of a record: nothing prints them."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """RFC 5802's StoredKey and ServerKey, and what a client needs to come to the same."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        """From what a client makes of a password, with which somebody could log in."""
        digest = mechanism.digest
        client_key = hmac.digest(salted_password, b"Client Key", digest)
        return cls(
            iterations,
            salt,
            hashlib.new(digest, client_key).digest(),
            hmac.digest(salted_password, b"Server Key", digest),
        )

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> ScramCredential:
        """Make a credential from the fields that `record_fields` returns."""
        salt, stored, server = (
            base64.b64decode(record[name]) for name in ("salt", "stored_key", "server_key")
        )
        return cls(record["iterations"], salt, stored, server)

    def record_fields(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return {
            "iterations": self.iterations,
            "salt": base64.b64encode(self.salt).decode(),
            "stored_key": base64.b64encode(self.stored_key).decode(),
            "server_key": base64.b64encode(self.server_key).decode(),
        }
