"""A storage account of Azure's and its login service under their own names, over TLS.

The account is Azurite's. A proxy, which HTTPS_PROXY and REQUESTS_CA_BUNDLE lead Azure's SDK to,
takes the names for what runs on loopback; all other names it refuses.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.core.exceptions import AzureError
from azure.storage.blob import AccountSasPermissions, ContainerClient, ResourceTypes
from azure.storage.blob import generate_account_sas as generate
from support.brokers.certificates import Authority, Signed
from support.brokers.probe import free_ports, wait_until
from support.brokers.processes import START_TIMEOUT_S, started
from support.sockets.http_server import Answering, HttpServer
from support.stores.azurite import azurite
from support.stores.token_endpoint import unsigned

ACCOUNT, CONTAINER, TENANT, CLIENT = "planted", "box", "planted.example", "planted-client"
STORE, LOGIN = f"{ACCOUNT}.blob.core.windows.net", "login.microsoftonline.com"
PLACE = f"{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
"""Container and account in a location."""
TOKEN_SECONDS = 3600
REFUSED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def account_sas(key: str) -> str:
    """A shared access signature for everything, of an account with this key."""
    what, may = ResourceTypes(object=True, container=True), AccountSasPermissions
    until = datetime.now(UTC) + timedelta(hours=1)
    allowed = may(read=True, write=True, delete=True, list=True, create=True)
    return generate(ACCOUNT, key, what, allowed, until)


def access_token() -> str:
    """Return a token that Azurite accepts with `--oauth basic`: it checks the claims, not the
    signature."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": f"https://sts.windows.net/{TENANT}/",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": now + TOKEN_SECONDS,
        "jti": uuid.uuid4().hex,
    }
    return unsigned(claims)


class AzureCloud:
    """The account with `key`, and a login that gives `token` for `client_secret`.

    A context manager; `environment` is what a process needs to come here.
    """

    def __init__(self, folder: Path, key: str, client_secret: str, token: str) -> None:
        self._folder, self._key = folder, key
        self._client_secret, self._token = client_secret, token
        folder.mkdir()
        ca = Authority("Azure's CA")
        self._signed = ca.sign(STORE, LOGIN)
        self._authorities = folder / "ca.pem"
        self._authorities.write_text(ca.pem)
        self.token_requests: list[dict[str, str]] = []

    @property
    def environment(self) -> dict[str, str]:
        proxy = f"http://127.0.0.1:{self._ports['proxy']}"
        return {"HTTPS_PROXY": proxy, "REQUESTS_CA_BUNDLE": str(self._authorities)}

    def __enter__(self) -> AzureCloud:
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(_store(self._folder, self._signed, self._key))
            login = stack.enter_context(self._login())
            self._ports = {STORE: store, LOGIN: login}
            self._ports["proxy"] = stack.enter_context(_proxy(self._ports))
            wait_until(self._has_container, "Azurite answers", timeout_s=START_TIMEOUT_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self) -> ContainerClient:
        credential = {"account_name": ACCOUNT, "account_key": self._key}
        proxies = {"https": self.environment["HTTPS_PROXY"]}
        return ContainerClient(
            f"https://{STORE}", CONTAINER, credential, retry_total=0,
            proxies=proxies, connection_verify=str(self._authorities),
        )  # fmt: skip

    def _has_container(self) -> bool:
        with contextlib.suppress(AzureError), self.client() as client:
            return client.exists() or bool(client.create_container())
        return False

    @contextlib.contextmanager
    def _login(self) -> Iterator[int]:
        """The port of a server that, as Azure's, does not say back what it refuses."""
        cloud = self

        class Handler(Answering):
            def do_GET(self) -> None:  # noqa: N802 - http.server's name
                start = f"https://{LOGIN}/{TENANT}"
                self._send(
                    200,
                    {
                        "issuer": f"{start}/v2.0",
                        "authorization_endpoint": f"{start}/oauth2/v2.0/authorize",
                        "token_endpoint": f"{start}/oauth2/v2.0/token",
                        "tenant_discovery_endpoint": f"{start}/v2.0/openid",
                        "metadata": [],
                    },
                )

            def do_POST(self) -> None:  # noqa: N802 - http.server's name
                form = dict(urllib.parse.parse_qsl(self.body().decode()))
                cloud.token_requests.append(form)
                if form.get("client_secret") == cloud._client_secret:
                    given = {"access_token": cloud._token, "token_type": "Bearer"}
                    self._send(200, given | {"expires_in": TOKEN_SECONDS})
                else:
                    said = "AADSTS7000215: Invalid client secret provided."
                    self._send(401, {"error": "invalid_client", "error_description": said})

            def _send(self, status: int, answer: object) -> None:
                self.reply(status, answer, Content_Type="application/json")

        with HttpServer(Handler, self._signed.server_context(self._folder)) as server:
            yield server.port


@contextlib.contextmanager
def _store(folder: Path, signed: Signed, key: str) -> Iterator[int]:
    """The port of Azurite, over TLS."""
    (port,) = free_ports(1)
    certificate, private = folder / "store.pem", folder / "store-key.pem"
    certificate.write_text(signed.chain_pem)
    private.write_text(signed.key_pem)
    command = [str(azurite()), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    command += ["--cert", str(certificate), "--key", str(private), "--oauth", "basic"]
    environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
    process = started(command, folder / "azurite.log", cwd=folder, env=environment)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _proxy(ports: dict[str, int]) -> Iterator[int]:
    """The port of an HTTP proxy for these names."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, ports), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, ports: dict[str, int]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_relay, args=(client, ports), daemon=True).start()


def _relay(client: socket.socket, ports: dict[str, int]) -> None:
    with client, contextlib.suppress(OSError):
        asked = b""
        while b"\r\n\r\n" not in asked:
            data = client.recv(4096)
            if not data:
                return
            asked += data
        port = ports.get(asked.split()[1].decode().partition(":")[0])
        if port is None:
            client.sendall(REFUSED)
            return
        with socket.create_connection(("127.0.0.1", port)) as server:
            client.sendall(CONNECTED)
            both = {client: server, server: client}
            while True:
                for source in select.select(list(both), (), ())[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    both[source].sendall(data)
