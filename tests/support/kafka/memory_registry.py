"""A schema registry in memory, by Confluent's REST interface, for clients of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from support.sockets.http_server import Answering, HttpServer

GUID = UUID("89791762-2336-4186-9674-299b90a80000")
"""The GUID of a schema is this one and its id."""

NO_SCHEMA, NO_SUBJECT, INCOMPATIBLE = 40403, 40401, 409


@dataclass(frozen=True)
class Schema:
    """A schema as it was registered; `serialized` is one of Protobuf in base64."""

    kind: str
    text: str


@dataclass
class MemoryRegistry:
    """Schemas have one id in all subjects. A subject in `closed` takes no further schema."""

    schemas: list[Schema] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def register(self, subject: str, text: str, kind: str = "AVRO") -> int:
        """The id of the schema, which is the subject's latest from now on if it is new there."""
        schema = Schema(kind, text)
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(subject, [])
        if schema_id not in ids:
            ids.append(schema_id)
        return schema_id

    def guid_of(self, schema_id: int) -> UUID:
        """The GUID of a schema."""
        return UUID(int=GUID.int + schema_id)

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(f"{method} {path}")
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            return self._by_id(int(parts[2]))
        if parts[:2] == ["schemas", "guids"]:
            return self._by_id(UUID(parts[2]).int - GUID.int)
        subject, kind = parts[1], body.get("schemaType", "AVRO")
        ids = self.subjects.get(subject, [])
        if parts[2:] == ["versions", "latest"]:
            if not ids:
                return 404, _error(NO_SUBJECT, f"Subject '{subject}' not found.")
            return 200, {"subject": subject, "id": ids[-1], **self._by_id(ids[-1])[1]}
        schema = Schema(kind, body["schema"])
        known = schema in self.schemas and self.schemas.index(schema) + 1 in ids
        if parts[2:] == ["versions"]:
            if subject in self.closed and not known:
                return 409, _error(INCOMPATIBLE, "Schema being registered is incompatible")
            return 200, {"id": self.register(subject, body["schema"], kind)}
        if not known:
            return 404, _error(NO_SCHEMA, "Schema not found")
        return 200, {"subject": subject, "id": self.schemas.index(schema) + 1}

    def _by_id(self, schema_id: int) -> tuple[int, dict[str, Any]]:
        if not 0 < schema_id <= len(self.schemas):
            return 404, _error(NO_SCHEMA, "Schema not found")
        schema = self.schemas[schema_id - 1]
        kind = {} if schema.kind == "AVRO" else {"schemaType": schema.kind}
        return 200, {"schema": schema.text, **kind}

    def server(self) -> HttpServer:
        """A server that answers as it does, for a `with`."""
        registry = self

        class Handler(Answering):
            def do_POST(self) -> None:  # noqa: N802
                self.reply(*registry._answer("POST", self.path, json.loads(self.body())))

            def do_GET(self) -> None:  # noqa: N802
                self.reply(*registry._answer("GET", self.path, {}))

        return HttpServer(Handler)


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}
