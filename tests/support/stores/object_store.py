"""An S3-compatible server on loopback, moto's, in this process: it can fail, lie and be slow."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import boto3
from botocore.config import Config
from moto.server import DomainDispatcherApplication, create_backend_app
from support.brokers.probe import free_ports
from werkzeug.serving import make_server

ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"
REGION = "us-east-1"
Answer = Iterable[bytes]


class ObjectStore:
    """A server with one bucket. A context manager.

    `faults` are asked in their order about each request; the first that answers has it.
    """

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        self.requests: list[tuple[str, str]] = []
        """(method, path) of each."""
        self.faults: list[Callable[[dict[str, Any], Callable[..., Answer]], Answer | None]] = []
        self._start: Any = None

    def __enter__(self) -> ObjectStore:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.client.create_bucket(Bucket=self.bucket)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )

    def location(self, path: str) -> str:
        return f"s3a://{self.bucket}/{path}"

    def options(self, prefix: str = "txnlog.fs.") -> dict[str, str]:
        """Return the connector's options to reach the store, or Spark's with another prefix."""
        return {
            f"{prefix}s3a.endpoint": self.endpoint,
            f"{prefix}s3a.endpoint.region": REGION,
            f"{prefix}s3a.access.key": ACCESS_KEY,
            f"{prefix}s3a.secret.key": SECRET_KEY,
            f"{prefix}s3a.path.style.access": "true",
        }

    def get(self, path: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=path)["Body"].read()

    def put(self, path: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=path, Body=data)

    def names(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        return [key for key in keys if not key.endswith("/")]

    # ------------------------------------------------------------------ faults

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Answer:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))

        def carry_out(answers_with: Any = start_response) -> Answer:
            return self._application(environ, answers_with)

        for fault in self.faults:
            environ["start_response"] = start_response
            answer = fault(environ, carry_out)
            if answer is not None:
                return answer
        return carry_out()


def failed(environ: dict[str, Any]) -> Answer:
    """The store's answer when something inside it is broken."""
    environ["start_response"]("500 Internal Server Error", [("Content-Length", "0")])
    return [b""]


def refused(environ: dict[str, Any]) -> Answer:
    """The store's answer to whom it does not let in."""
    environ["start_response"]("403 Forbidden", [("Content-Length", "0")])
    return [b""]


def carried_out(carry_out: Callable[..., Answer]) -> None:
    """Carry the request out, and let its answer be lost."""
    list(carry_out(lambda *_: None))
