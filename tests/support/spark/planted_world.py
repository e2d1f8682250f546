"""Places where the planted secrets are right and wrong, and the steps that use them.

Each of SECRETS has a right value, and a wrong value too unless a server issues it as a token. A
right value is used in a step that works, or that fails for another reason; a wrong value in a step
that fails because of it.
"""

from __future__ import annotations

import base64
import ssl
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import jks
from confluent_kafka.admin import ScramMechanism
from cryptography.hazmat.primitives import serialization
from support.brokers.certificates import Signed
from support.brokers.probe import free_ports
from support.brokers.tls_kafka import add_user, tls_sim
from support.clients.librdkafka import create_topic, produce_values
from support.sockets.http_server import Answering, HttpServer
from support.sockets.secured_broker import SecuredBroker
from support.sockets.socket_broker import answer_bytes, metadata_answer
from support.stores import azure_cloud
from support.stores.object_store import ACCESS_KEY, ObjectStore, refused
from support.stores.token_endpoint import TokenEndpoint

from txnlog_kafka.wire.messages import APIS, ApiKey

SECRETS = (
    "SCRAM password",
    "truststore password",
    "keystore password",
    "key password",
    "PEM key",
    "OAuth client secret",
    "OAuth access token",
    "S3 secret key",
    "S3 session token",
    "Azure account key",
    "Azure SAS token",
    "Azure client secret",
    "Azure access token",
    "registry password",
    "registry token",
    "registry key password",
)
GIVEN_BY_SERVERS = ("OAuth access token", "Azure access token")
AZURE = "Azure"
"""Prefix of the secrets that need the emulator of Azure."""
USER, CLIENT = "planted-user", "spark"
SCHEMA = '{"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "long"}]}'
REFUSED_BUCKET, REFUSED_KEY = "refused-bucket", "refused-access"
NO_RETRIES = {"txnlog.fs.azure.io.retry.max.retries": "0"}

Options = dict[str, str]
Values = dict[str, str]
"""Values by name of SECRETS."""


def values(kind: str, client: Signed) -> Values:
    """A value of its own for each secret."""
    made = {
        name: f"{kind}-{name.lower().replace(' ', '-')}-{uuid.uuid4().hex[:12]}" for name in SECRETS
    }
    made["Azure account key"] = base64.b64encode(made["Azure account key"].encode()).decode()
    made["Azure SAS token"] = azure_cloud.account_sas(made["Azure account key"])
    made["Azure access token"] = azure_cloud.access_token()
    made["PEM key"] = client.key_pem
    return made


def marks(name: str, value: str) -> list[str]:
    """Return the parts of a value that must appear nowhere: each secret part, if it has lines or
    fields."""
    if name == "PEM key":
        return value.splitlines()[1:-1]
    if name == "Azure SAS token":
        (signature,) = parse_qs(value)["sig"]
        return [signature, quote(signature, safe="")]
    return [value.split(".")[1]] if name == "Azure access token" else [value]


class World:
    """A broker with TLS and SCRAM, stores, and servers that take the right values.

    With Azure's emulator, and with checkpoints in the S3 store, where these can be had.
    """

    def __init__(
        self, folder: Path, stack: ExitStack, *, has_azure: bool, has_checkpoints: bool
    ) -> None:
        self.folder, self.has_checkpoints = folder, has_checkpoints
        self.broker = stack.enter_context(tls_sim(folder / "broker"))
        self.ca = self.broker.security.ca
        self.client = self.ca.sign()
        self.right = values("right", self.client)
        self.wrong = values("wrong", self.ca.sign())
        right = self.right
        password, mechanism = right["SCRAM password"], ScramMechanism.SCRAM_SHA_512
        add_user(self.broker.bootstrap_servers, USER, password, mechanism)
        self.store = stack.enter_context(ObjectStore())
        self.store.faults.append(
            lambda environ, _: refused(environ) if _is_refused(environ) else None
        )
        endpoint = TokenEndpoint({"access_token": right["OAuth access token"]})
        endpoint.client, endpoint.secret = CLIENT, right["OAuth client secret"]
        self.tokens = stack.enter_context(endpoint)
        bearer = SecuredBroker(self._not_authorized, mechanisms=("OAUTHBEARER",))
        bearer.token = right["OAuth access token"]
        self.bearer = stack.enter_context(bearer)
        self.registry = stack.enter_context(registry(right))
        mutual = self.ca.sign("127.0.0.1").server_context(folder, client_ca=self.ca)
        self.tls_registry = stack.enter_context(registry(right, mutual))
        self.cloud: azure_cloud.AzureCloud | None = None
        if has_azure:
            names = ("account key", "client secret", "access token")
            of_azure = (right[f"{AZURE} {name}"] for name in names)
            self.cloud = stack.enter_context(azure_cloud.AzureCloud(folder / "azure", *of_azure))
        bootstrap = self.broker.bootstrap_servers
        self.input = create_topic(bootstrap, "planted-in")
        self.output = create_topic(bootstrap, "planted-out")
        produce_values(bootstrap, self.input, [letter * 400_000 for letter in "abc"])
        (self.closed_port,) = free_ports(1)
        self._write_stores()

    def _not_authorized(self, header: Any, message: Any) -> bytes | None:
        """Answer a client that has logged in that it may not read this topic."""
        if header.api_key != ApiKey.METADATA:
            return None
        answer = metadata_answer(self.bearer)
        topic = APIS[ApiKey.METADATA].response.MetadataResponseTopic
        names = [self.input] if message.topics is None else [each.name for each in message.topics]
        answer.topics = [topic(error_code=29, name=name, partitions=[]) for name in names]
        return answer_bytes(header, answer)

    def _write_stores(self) -> None:
        ca, der = self.ca, serialization.Encoding.DER
        client = ca.sign()
        none = serialization.NoEncryption()
        key = client.key.private_bytes(der, serialization.PrivateFormat.PKCS8, none)
        chain = [each.public_bytes(der) for each in (client.certificate, ca.certificate)]
        entry = jks.PrivateKeyEntry.new("client", chain, key, "pkcs8")
        entry.encrypt(self.right["key password"])
        trusted = jks.TrustedCertEntry.new("ca", chain[1])
        for name, kept in (("keystore", entry), ("truststore", trusted)):
            made = jks.KeyStore.new("jks", [kept]).saves(self.right[f"{name} password"])
            (self.folder / name).write_bytes(made)
        encrypted = client.encrypted_key_pem(self.right["registry key password"])
        (self.folder / "registry-key.pem").write_text(encrypted + client.chain_pem)

    # ------------------------------------------------------------------ options

    def secured(self, wrong: str = "") -> Options:
        """TLS with both stores and a login; one secret has the wrong value."""
        of = self.right | ({wrong: self.wrong[wrong]} if wrong else {})
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        return {
            "kafka.bootstrap.servers": self.broker.security.address("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": (
                f'{module} username="{USER}" password="{of["SCRAM password"]}";'
            ),
            "kafka.ssl.truststore.location": str(self.folder / "truststore"),
            "kafka.ssl.truststore.password": of["truststore password"],
            "kafka.ssl.keystore.location": str(self.folder / "keystore"),
            "kafka.ssl.keystore.password": of["keystore password"],
            "kafka.ssl.key.password": of["key password"],
        }

    def s3(self, of: Values) -> Options:
        secrets = {
            "txnlog.fs.s3a.secret.key": of["S3 secret key"],
            "txnlog.fs.s3a.session.token": of["S3 session token"],
            "txnlog.fs.s3a.access.key": ACCESS_KEY,
        }
        return self.store.options() | secrets

    def pem(self, key: str) -> Options:
        """TLS both ways; the key is that of `right` or another, as text."""
        return {
            "kafka.bootstrap.servers": self.broker.security.address("MUTUAL"),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.certificates": self.ca.pem,
            "kafka.ssl.keystore.key": key,
            "kafka.ssl.keystore.certificate.chain": self.client.chain_pem,
        }

    def azure(self, **options: str) -> Options:
        """Staged in the account that `cloud` has, with one of its credentials."""
        where = {"stagingLocation": f"abfss://{azure_cloud.PLACE}/staged"} | NO_RETRIES
        return where | {
            f"txnlog.fs.azure.{name.replace('_', '.')}": value for name, value in options.items()
        }

    def principal(self, of: Values, tenant: str = azure_cloud.TENANT) -> Options:
        return self.azure(
            account_oauth2_client_id=azure_cloud.CLIENT,
            account_oauth2_msi_tenant=tenant,
            account_oauth2_client_secret=of["Azure client secret"],
        )

    def credentials(self, of: Values) -> Iterator[Options]:
        yield self.azure(account_key=of["Azure account key"])
        yield self.azure(sas_fixed_token=of["Azure SAS token"])
        yield self.principal(of)

    def oauth(self, of: Values) -> Options:
        """A login by a token, which the endpoint gives to the right secret only."""
        credentials = "kafka.sasl.oauthbearer.client.credentials.client"
        return {
            "kafka.bootstrap.servers": self.bearer.bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": self.tokens.url,
            f"{credentials}.id": self.tokens.client,
            f"{credentials}.secret": of["OAuth client secret"],
        }

    def basic(self, of: Values, path: str = "") -> Options:
        """The registry by user and password."""
        return {
            "schema.registry.url": f"http://{self.registry}{path}",
            "basic.auth.credentials.source": "USER_INFO",
            "basic.auth.user.info": f"{USER}:{of['registry password']}",
        }

    def in_url(self, of: Values, path: str = "") -> Options:
        """The registry by user and password in its address."""
        user_info = f"{USER}:{of['registry password']}"
        return {"schema.registry.url": f"http://{user_info}@{self.registry}{path}"}

    def mutual(self, of: Values) -> Options:
        """The registry over TLS, which asks for a certificate, by a token."""
        prefix = "schema.registry.ssl."
        return self.bearer_token(self.right) | {
            "schema.registry.url": f"https://{self.tls_registry}",
            f"{prefix}truststore.certificates": self.ca.pem,
            f"{prefix}keystore.location": str(self.folder / "registry-key.pem"),
            f"{prefix}key.password": of["registry key password"],
        }

    def bearer_token(self, of: Values, path: str = "") -> Options:
        return {
            "schema.registry.url": f"http://{self.registry}{path}",
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": of["registry token"],
        }

    # ------------------------------------------------------------------ steps

    def steps(self) -> list[dict[str, Any]]:
        return [*self._working(), *self._refused_by_kafka(), *self._refused_elsewhere()]

    def _stream(self, name: str, read: Options, write: Options, *, fails: bool) -> dict[str, Any]:
        checkpoint = str(self.folder / "checkpoints" / name)
        if self.has_checkpoints and "txnlog.fs.s3a.secret.key" in write:
            checkpoint = self.store.location(f"checkpoints/{name}")
        own = {"topic": self.output, "checkpointLocation": checkpoint}
        group = {"kafka.group.id": f"planted-{name}"}
        source = {"subscribe": self.input, "startingOffsets": "earliest"}
        return {
            "name": name, "kind": "stream", "fails": fails,
            "read": read | source | group, "write": write | own | group,
        }  # fmt: skip

    def _save(self, name: str, options: Options, *, fails: bool) -> dict[str, Any]:
        kafka = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, "topic": self.output}
        return {"name": name, "kind": "save", "fails": fails, "write": kafka | options}

    def _read(self, name: str, options: Options) -> dict[str, Any]:
        read = options | {"subscribe": self.input}
        return {"name": name, "kind": "read", "fails": True, "read": read}

    def _working(self) -> Iterator[dict[str, Any]]:
        secured, right = self.secured(), self.right
        in_store = {"stagingLocation": self.store.location("staged")} | self.s3(right)
        yield self._stream("in-the-store", secured, secured | in_store, fails=False)
        yield self._stream("on-the-driver", secured, self.pem(right["PEM key"]), fails=False)
        embedded = {"path": str(self.folder / "embedded"), "topic": self.output}
        yield {"name": "embedded", "kind": "save", "fails": False, "write": embedded}
        value = list(b"\0\0\0\0\1\2")
        of_registry = (self.basic, self.in_url, self.bearer_token, self.mutual)
        for options in (of(right) for of in of_registry):
            yield {
                "name": "registry", "kind": "decode", "fails": False,
                "schema": SCHEMA, "value": value, "options": options,
            }  # fmt: skip
            yield self._typed(options, fails=False)
        if self.cloud is not None:
            for options in self.credentials(right):
                yield self._save("Azure", options, fails=False)

    def _refused_by_kafka(self) -> Iterator[dict[str, Any]]:
        for name in ("truststore password", "keystore password", "key password"):
            yield self._read(name, self.secured(wrong=name))
        wrong = self.secured(wrong="SCRAM password")
        yield self._stream("wrong-source", wrong, self.secured(), fails=True)
        yield self._stream("wrong-sink", self.secured(), wrong, fails=True)
        yield self._read("OAuth", self.oauth(self.wrong))
        yield self._read("OAuth, not authorized", self.oauth(self.right))
        pem, key = self.pem(self.right["PEM key"]), self.right["PEM key"]
        torn = key.replace("-----BEGIN", "----BEGIN")
        for given in (self.wrong["PEM key"], torn, key.replace("\nM", "\n*M", 1)):
            yield self._read("PEM", pem | {"kafka.ssl.keystore.key": given})
        right = self.secured()
        jaas = right["kafka.sasl.jaas.config"]
        for broken in (jaas.replace('";', ";"), jaas.replace("password=", "passwort=")):
            yield self._read("broken jaas", right | {"kafka.sasl.jaas.config": broken})
        names = ("sasl.jaas.config", "ssl.keystore.password", "ssl.key.password")
        for options, option in (*((right, name) for name in names), (pem, "ssl.keystore.key")):
            mistyped = f"kafka.{option}"[:-1]
            yield self._read(mistyped, options | {mistyped: options[f"kafka.{option}"]})

    def _refused_elsewhere(self) -> Iterator[dict[str, Any]]:
        where = {"stagingLocation": f"s3a://{REFUSED_BUCKET}/staged"}
        s3, key = self.s3(self.wrong), self.wrong["Azure account key"]
        yield self._save("judge", s3 | where, fails=True)
        for name, value in (
            ("s3a.secret.kex", self.wrong["S3 secret key"]),
            ("azure.sas.fixed.tokem", self.wrong["Azure SAS token"]),
        ):
            mistyped = {f"txnlog.fs.{name}": value}
            yield self._save(name, s3 | where | mistyped, fails=True)
        if self.has_checkpoints:
            refused_there = s3 | {"txnlog.fs.s3a.access.key": REFUSED_KEY}
            secured = self.secured()
            yield self._stream("wrong-checkpoint", secured, secured | refused_there, fails=True)
        yield self._save("no Azure key", self.azure(account_key=f"{key}!"), fails=True)
        yield self._save("Azure tenant", self.principal(self.wrong, "not a tenant"), fails=True)
        if self.cloud is not None:
            for options in self.credentials(self.wrong):
                yield self._save("Azure", options, fails=True)
        yield from self._refused_by_the_registry()

    def _refused_by_the_registry(self) -> Iterator[dict[str, Any]]:
        wrong = self.wrong
        for path in ("", "/echo", "/echo/as-text"):
            for of in (self.basic, self.in_url, self.bearer_token):
                yield from self._decodes(of(wrong, path))
        torn = wrong["registry token"] + "\nof two lines"
        yield from self._decodes(self.bearer_token(wrong | {"registry token": torn}))
        password = wrong["registry password"]
        source = {"basic.auth.credentials.source": "URL"}
        closed = f"http://{USER}:{password}@127.0.0.1:{self.closed_port}"
        yield from self._decodes(source | {"schema.registry.url": closed})
        yield from self._decodes(self.basic(wrong) | {"basic.auth.user.inf": password})
        yield from self._decodes(self.mutual(wrong))
        name = "schema.registry.ssl.key.passwor"
        key_password = wrong["registry key password"]
        yield from self._decodes(self.mutual(self.right) | {name: key_password})

    def _decodes(self, options: Options) -> Iterator[dict[str, Any]]:
        """Yield steps that decode on the driver, which asks for a topic's schema, and on an
        executor."""
        for schema, more in (("", {"topic": "planted"}), (SCHEMA, {})):
            yield {
                "name": "registry", "kind": "decode", "fails": True,
                "schema": schema, "value": list(b"\0\0\0\0\2\2"), "options": options | more,
            }  # fmt: skip
        yield self._typed(options, fails=True)

    def _typed(self, options: Options, *, fails: bool) -> dict[str, Any]:
        """A read whose values have the registry's schema, or are malformed."""
        of_format = {"value.format": "avro", "value.mode": "PERMISSIVE"}
        read = self.secured() | {"subscribe": self.input} | of_format | options
        return {"name": "typed", "kind": "read", "fails": fails, "read": read}


def _is_refused(environ: dict[str, Any]) -> bool:
    """True if the S3 store refuses the request: by its bucket, or by its user."""
    who = environ.get("HTTP_AUTHORIZATION", "")
    return REFUSED_BUCKET in environ["PATH_INFO"] or f"Credential={REFUSED_KEY}/" in who


@contextmanager
def registry(right: Values, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a schema registry that says back to whom it refuses what it was told.

    With the status 401, below /echo with 500, as a proxy in front of it may.
    """
    user = base64.b64encode(f"{USER}:{right['registry password']}".encode()).decode()
    allowed = (f"Basic {user}", f"Bearer {right['registry token']}")

    class Handler(Answering):
        def do_GET(self) -> None:  # noqa: N802 - http.server's name
            given = self.headers.get("Authorization", "")
            if given in allowed:
                self.reply(200, {"schema": SCHEMA, "id": 1, "version": 1})
                return
            status = 500 if self.path.startswith("/echo") else 401
            plain = base64.b64decode(given.removeprefix("Basic ") + "===")
            said = f"{given} is not {plain.decode('latin-1')}"
            as_text = "as-text" in self.path
            self.reply(
                status, said.encode() if as_text else {"error_code": status, "message": said}
            )

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - http.server's names

    with HttpServer(Handler, tls) as server:
        yield server.address
