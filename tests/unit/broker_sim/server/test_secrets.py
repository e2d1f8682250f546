"""A broker's most verbose log has no password, no key and no login."""

from __future__ import annotations

import hashlib
import signal
import socket
import subprocess
import sys

import pytest
from support.brokers.certificates import LOCAL, Authority
from support.brokers.probe import free_ports, wait_until
from support.clients.sasl_client import MODULES, SCRAM_MODULE
from support.clients.tls_client import asked, port_in

from txnlog_kafka.wire.messages import APIS, ApiKey

STORE, ALICE, TYPED, BOB = "store-secret", "alice-secret", "mistyped-secret", "bob-secret"


def start(tmp_path, port: int, *, jaas: str) -> tuple[subprocess.Popen[bytes], list[str]]:
    """A broker that logs everything, and what must not be in its logs."""
    signed = Authority().sign(*LOCAL)
    (tmp_path / "store").write_bytes(signed.pkcs12(STORE))
    config = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM_MODULE,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(tmp_path / "store"),
        "ssl.keystore.password": STORE,
    }
    file = tmp_path / "broker.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    command = [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(tmp_path / "data")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--config", str(file), "--log-level", "DEBUG"], stdout=log, stderr=log
        )
    return process, [STORE, ALICE, TYPED, BOB, signed.key_pem.splitlines()[1]]


def log_in(sock: socket.socket, password: str) -> int:
    assert asked(sock, ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
    token = f"\0alice\0{password}".encode()
    return int(asked(sock, ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token).error_code)


@pytest.mark.invariant(76)
def test_no_secret_is_in_the_log_of_a_broker(tmp_path):
    (port,) = free_ports(1)
    jaas = f'{MODULES}.plain.PlainLoginModule required user_alice="{ALICE}";'
    process, secrets = start(tmp_path, port, jaas=jaas)
    log = tmp_path / "log"
    try:
        wait_until(lambda: "READY" in log.read_text(), "the broker")
        # A refused login: people mistype passwords, so the log must not have the wrong one either.
        with port_in(port) as sock:
            assert log_in(sock, TYPED) == 58
        # A new SCRAM user, whose salted password is as good as a password.
        salted = hashlib.pbkdf2_hmac("sha256", BOB.encode(), b"the salt", 4096)
        users = APIS[ApiKey.ALTER_USER_SCRAM_CREDENTIALS].request
        upsertion = users.ScramCredentialUpsertion(
            name="bob", mechanism=1, iterations=4096, salt=b"the salt", salted_password=salted
        )
        with port_in(port) as sock:
            assert log_in(sock, ALICE) == 0
            answer = asked(sock, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[upsertion])
            assert answer.results[0].error_code == 0
            # Descriptions of the broker's options leave out the values of secrets.
            resources = [
                APIS[ApiKey.DESCRIBE_CONFIGS].request.DescribeConfigsResource(
                    resource_type=4, resource_name="0", configuration_keys=None
                )
            ]
            found = asked(sock, ApiKey.DESCRIBE_CONFIGS, 4, resources=resources,
                          include_synonyms=True)  # fmt: skip
            shown = {c.name: c for c in found.results[0].configs}
            jaas_option = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
            for name in ("ssl.keystore.password", jaas_option):
                assert shown[name].is_sensitive
                assert shown[name].value is None
                assert all(synonym.value is None for synonym in shown[name].synonyms)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    # Neither the log nor the data directory has a secret, in any of its forms.
    text = log.read_text()
    assert "scram" in text, "the log has the change of the user"
    keys = ("stored_key", "server_key", "the salt", salted.hex())
    assert [word for word in (*secrets, *keys) if word in text] == []
    data = b"".join(p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.is_file())
    assert [word for word in (ALICE, TYPED, BOB, STORE) if word.encode() in data] == []
    assert salted not in data


@pytest.mark.invariant(76)
def test_no_secret_is_in_the_line_of_a_broker_that_cannot_start(tmp_path):
    (port,) = free_ports(1)
    for wrong in (f'PlainLoginModule required user_alice="{ALICE}', f"x {ALICE};", f'a="{ALICE}"'):
        process, secrets = start(tmp_path, port, jaas=wrong)
        assert process.wait(30) == 2
        text = (tmp_path / "log").read_text()
        assert "listener.name.sasl_plaintext.plain.sasl.jaas.config must be" in text
        assert [word for word in secrets if word in text] == []
