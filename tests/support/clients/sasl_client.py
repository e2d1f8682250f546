"""A client's side of SASL for tests of the broker's."""

from __future__ import annotations

import hashlib
from typing import Any

from support.core.broker_build import BrokerOnDisk, request

from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.sasl import password_mechanism

MODULES = "org.apache.kafka.common.security"
PLAIN_USERS = (
    f'{MODULES}.plain.PlainLoginModule required user_admin="admin-secret" user_bob="bob-secret";'
)
SCRAM_MODULE = f"{MODULES}.scram.ScramLoginModule required;"
USERS = {"admin": "admin-secret", "bob": "bob-secret"}
"""Users that log in by PLAIN, with their passwords."""
SASL_CONFIG = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_USERS,
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM_MODULE,
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": SCRAM_MODULE,
}
SALT = b"some salt"
MECHANISM_IDS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


def add_user(
    broker: BrokerOnDisk,
    user: str,
    password: str,
    mechanism: str = "SCRAM-SHA-256",
    fields: dict[str, Any] | None = None,
) -> int:
    """Adds or changes a SCRAM user; the code of the answer."""
    digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, 4096)
    values = {
        "name": user,
        "mechanism": MECHANISM_IDS[mechanism],
        "iterations": 4096,
        "salt": SALT,
        "salted_password": salted,
    } | (fields or {})
    message = request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, upsertions=[values])
    return broker.ask(message, 0).results[0].error_code


def log_in(
    broker: BrokerOnDisk,
    user: str,
    password: str,
    mechanism: str = "PLAIN",
    *,
    connection_id: int = 1,
) -> Any:
    """A whole login; the last answer, which may be late."""
    answer = broker.ask(
        request(ApiKey.SASL_HANDSHAKE, mechanism=mechanism), 1, connection_id=connection_id
    )
    assert answer.error_code == 0
    client = password_mechanism(mechanism, user, password, nonce="client")
    while not client.is_complete:
        message = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=client.next_bytes())
        key = broker.send(message, 2, connection_id=connection_id)
        if key not in broker.asked.answers:
            broker.advance(200)
        answer = broker.asked.answers[key]
        if answer.error_code:
            return answer
        client.receive(answer.auth_bytes)
    return answer
