"""Apicurio Registry, which has Confluent's REST interface, from Maven Central, in memory.

It takes anybody: `PasswordProxy` stands before it where a test wants a user and a password, and
counts what is asked.
"""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from support.brokers.probe import free_ports
from support.brokers.processes import START_TIMEOUT_S, Server
from support.harness.maven import CACHE, completed_once, fetched_file
from support.sockets.http_server import Answering, HttpServer

VERSION = "2.6.13.Final"
"""The last that runs on Java 17."""

HOME = CACHE / "apicurio" / VERSION
API = "/apis/ccompat/v7"
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_STORE_PASSWORD = "changeit"


def apicurio_home() -> Path:
    """The unpacked server, fetched on the first call. Unavailable says why not."""
    with completed_once(HOME) as is_first:
        if is_first:
            artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
            archive = fetched_file("Apicurio Registry", artifact, HOME)
            with tarfile.open(archive) as packed:
                # Python before 3.11.4 (Debian 12 has 3.11.2) has no extraction filters.
                packed.extraction_filter = getattr(tarfile, "data_filter", None)
                packed.extractall(HOME)
            archive.unlink()
    return HOME


class Apicurio(Server):
    """Apicurio server, over HTTP and HTTPS; its certificate is for 127.0.0.1."""

    what = "Apicurio Registry"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.tls_port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}{API}"
        self.tls_url = f"https://127.0.0.1:{self.tls_port}{API}"
        self.certificate = folder / "registry.pem"

    def _command(self) -> list[str]:
        home = apicurio_home()
        store = make_certificate(self._folder / "store.p12", self.certificate)
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.http.ssl-port": str(self.tls_port),
            "quarkus.http.ssl.certificate.key-store-file": str(store),
            "quarkus.http.ssl.certificate.key-store-password": _STORE_PASSWORD,
        }
        command = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-D{name}={value}" for name, value in options.items()]
        return [*command, "-jar", str(home / f"apicurio-registry-app-{VERSION}-runner.jar")]

    def _answers(self) -> bool:
        try:
            return ask(self.port, "GET", "/subjects")[0] == 200
        except OSError:
            return False

    def register(self, subject: str, schema: Any) -> int:
        """The id of a schema that is now registered."""
        status, answer = ask(self.port, "POST", f"/subjects/{subject}/versions", schema)
        assert status == 200, answer
        return json.loads(answer)["id"]

    def subjects(self) -> list[str]:
        return json.loads(ask(self.port, "GET", "/subjects")[1])


def ask(port: int, method: str, path: str, schema: Any = None) -> tuple[int, bytes]:
    """Status and answer of the server at this port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_TIMEOUT_S)
    body = None if schema is None else json.dumps({"schema": json.dumps(schema)})
    try:
        connection.request(method, API + path, body, {"Content-Type": CONTENT_TYPE})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def make_certificate(store: Path, certificate: Path) -> Path:
    """A key store with a certificate for 127.0.0.1 that it signed itself, and the certificate."""
    common = ["-alias", "registry", "-keystore", str(store), "-storepass", _STORE_PASSWORD]
    made = ["-keyalg", "EC", "-dname", "CN=registry", "-ext", "san=ip:127.0.0.1"]
    for command in (
        ["-genkeypair", *common, "-storetype", "PKCS12", *made],
        ["-exportcert", "-rfc", *common, "-file", str(certificate)],
    ):
        subprocess.run(["keytool", *command], check=True, capture_output=True)
    return store


class PasswordProxy(HttpServer):
    """Passes on to a server what comes with this user and password."""

    def __init__(self, port: int, user_info: str) -> None:
        self.asked: list[str] = []
        wanted = f"Basic {base64.b64encode(user_info.encode()).decode()}"
        asked = self.asked

        class Handler(Answering):
            def do_GET(self) -> None:  # noqa: N802 - http.server's name
                asked.append(self.path)
                if self.headers.get("Authorization") != wanted:
                    self.reply(401, b"{}")
                    return
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_TIMEOUT_S)
                headers = {"Content-Type": CONTENT_TYPE}
                connection.request(self.command, API + self.path, self.body(), headers)
                answer = connection.getresponse()
                self.reply(answer.status, answer.read())
                connection.close()

            do_POST = do_GET  # noqa: N815 - http.server's name

        super().__init__(Handler)
