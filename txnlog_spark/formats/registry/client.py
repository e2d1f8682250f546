"""A client of schema registries that have Confluent's REST interface.

Answers do not change: an id or a GUID stands for one schema for ever, and a schema that is
registered under a subject stays. So the client keeps both for as long as the process lives. A
schema that was not found is asked for again.

The client repeats a request if the registry is busy, or away for a moment.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit
from uuid import UUID

from txnlog_kafka.stores import PREFIX, build_tls_context
from txnlog_spark.errors import HIDDEN, OptionError
from txnlog_spark.formats.errors import RegistryError, RegistryUnreachable, UnknownSchema
from txnlog_spark.options.registry import URL
from txnlog_spark.process_local import process_local

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT_MS = 60_000
"""Default of Confluent's client."""

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
"""Types of schemas. A schema of Protobuf is a FileDescriptorProto in base64."""

_FORMS = {PROTOBUF: "?format=serialized"}
PAUSES_S = (0.3, 1.0)
"""Pauses after which all addresses are asked again, if it may help."""
_NOT_FOUND = 404
_BUSY = (408, 429)
"""Request Timeout and Too Many Requests; so are all statuses from 500 on."""
_NOT_REGISTERED = ". Register it, or set the option auto.register.schemas=true"
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class _NoAnswer(Exception):
    """An address gave no answer; `passing`: it may answer when it is asked again."""

    def __init__(self, why: str, *, passing: bool = True) -> None:
        super().__init__(why)
        self.passing = passing


class Registry:
    """Client of one registry, at one or more addresses. The constructor checks `options`.

    `sleep` takes seconds.
    """

    def __init__(
        self, options: Mapping[str, str], sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._sleep = sleep
        self._addresses = [_address(each) for each in options[URL].split(",")]
        self._timeout_s = _timeout_s(options)
        self._authorization = _authorization(options, self._addresses[0])
        self._secrets = _secrets(self._authorization)
        self._identity = _identity(options, self._authorization)
        secure = any(address.scheme == "https" for address in self._addresses)
        self._tls = _tls_context(options) if secure else None
        self._schemas: dict[tuple[int | UUID, str], str] = {}
        self._latest: dict[tuple[str, str], tuple[int, str]] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, schema_id: int | UUID, kind: str = AVRO) -> str:
        """Return the schema of an id or a GUID: JSON, or base64 for `PROTOBUF`.

        Raises UnknownSchema if the registry does not have it.
        """
        if (schema_id, kind) not in self._schemas:
            word = "GUID" if isinstance(schema_id, UUID) else "id"
            path = f"/schemas/{word.lower()}s/{schema_id}{_FORMS.get(kind, '')}"
            what = f"the schema {word} {schema_id}"
            answer = self._ask("GET", path, what)
            self._schemas[schema_id, kind] = _schema_of(answer, kind, what)
        return self._schemas[schema_id, kind]

    def latest(self, subject: str, kind: str = AVRO, *, keep: bool = False) -> tuple[int, str]:
        """Return id and schema of a subject's latest version; with `keep`, of the last answer."""
        if keep and (subject, kind) in self._latest:
            return self._latest[subject, kind]
        path = f"/subjects/{quote(subject, safe='')}/versions/latest{_FORMS.get(kind, '')}"
        what = f"the subject {subject}"
        answer = self._ask("GET", path, what)
        schema_id, schema = _id_of(answer), _schema_of(answer, kind, what)
        self._schemas[schema_id, kind] = schema
        self._latest[subject, kind] = schema_id, schema
        return schema_id, schema

    def id_of(self, subject: str, schema: str, kind: str = AVRO, *, register: bool) -> int:
        """Return the id that a schema has under a subject.

        With `register` the schema is registered if it is not; else UnknownSchema is raised.
        """
        if (subject, schema) not in self._ids:
            path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if register else "")
            what = f"this schema under the subject {subject}"
            remedy = "" if register else _NOT_REGISTERED
            # A registry before 5.5 knows of no type but Avro, and refuses the field.
            body = {"schema": schema} | ({} if kind == AVRO else {"schemaType": kind})
            self._ids[subject, schema] = _id_of(self._ask("POST", path, what, body, remedy))
        return self._ids[subject, schema]

    def _ask(
        self, method: str, path: str, what: str, body: Any = None, remedy: str = ""
    ) -> dict[str, Any]:
        """Return the first answer of an address; `remedy` ends the error of a missing schema."""
        failures: dict[str, str] = {}
        asked = self._addresses
        for pause_s in (0, *PAUSES_S):
            if asked and pause_s:
                self._sleep(pause_s)
            again = []
            for address in asked:
                try:
                    status, text = self._answer(address, method, path, body)
                except _NoAnswer as failure:
                    failures[_shown(address)] = str(failure)
                    if failure.passing:
                        again.append(address)
                    continue
                return self._read(status, text, what, _shown(address), remedy)
            asked = again
        raise RegistryUnreachable(
            f"no schema registry in the option {URL} answered when asked for {what}: "
            + "; ".join(f"{address}: {why}" for address, why in failures.items())
        )

    def _answer(self, address: SplitResult, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """Return status and text of an answer. Raises _NoAnswer."""
        try:
            status, text = self._request(address, method, path, body)
        except ssl.SSLCertVerificationError as error:
            raise _NoAnswer(
                f"its certificate is not trusted ({error.verify_message}); "
                "see schema.registry.ssl.truststore.location",
                passing=False,
            ) from None
        except TimeoutError:
            # The time-out has passed once: to ask again would double it.
            raise _NoAnswer(
                f"it was silent for http.connect.timeout.ms={self._timeout_s * 1000:.0f}",
                passing=False,
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _NoAnswer(f"{type(error).__name__}: {error}") from None
        if status in _BUSY or status >= 500:
            raise _NoAnswer(f"HTTP {status}: {_reason(text, self._secrets)}")
        if status == _NOT_FOUND and not _has_code(text, _NOT_FOUND):
            raise _NoAnswer(
                f"HTTP {status}, which is not a schema registry's but of what is at this address: "
                f"{_reason(text, self._secrets)}"
            )
        return status, text

    def _read(
        self, status: int, text: bytes, what: str, address: str, remedy: str
    ) -> dict[str, Any]:
        """Return the content of an answer. Raises RegistryError for a refusal."""
        reason = _reason(text, self._secrets)
        if status == _NOT_FOUND:
            raise UnknownSchema(
                f"the schema registry {address} does not have {what}: {reason}{remedy}"
            )
        if status != 200:
            reason = f"see {self._identity}" if status in (401, 403) else reason
            raise RegistryError(
                f"the schema registry {address} refused {what} with HTTP {status}: {reason}"
            )
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RegistryError(
                f"the option {URL}: {address} does not answer as a schema registry: {reason}"
            )
        return answer

    def _request(
        self, address: SplitResult, method: str, path: str, body: Any
    ) -> tuple[int, bytes]:
        host = address.hostname or ""
        connection: http.client.HTTPConnection
        if address.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, address.port, timeout=self._timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(host, address.port, timeout=self._timeout_s)
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if self._authorization:
            headers["Authorization"] = self._authorization
        content = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, address.path.rstrip("/") + path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES_MAX)
        finally:
            connection.close()


# Options --------------------------------------------------------------------------------------


def _address(given: str) -> SplitResult:
    try:
        address = urlsplit(given.strip())
        usable = address.scheme in ("http", "https") and address.hostname
        address.port  # noqa: B018  # raises when it is not a number
    except ValueError:
        usable = None
    if not usable:
        # Not shown: it may have a password.
        raise OptionError(URL, None, "addresses such as https://host:8081, separated by commas")
    return address


def _shown(address: SplitResult) -> str:
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"


def _timeout_s(options: Mapping[str, str]) -> float:
    given = options.get("http.connect.timeout.ms", str(TIMEOUT_MS))
    if not given.isdecimal() or not int(given):
        raise OptionError("http.connect.timeout.ms", given, "milliseconds, above 0")
    return int(given) / 1000


def _authorization(options: Mapping[str, str], address: SplitResult) -> str:
    source = options.get("basic.auth.credentials.source", "")
    bearer = options.get("bearer.auth.credentials.source", "")
    if source and bearer:
        raise OptionError("bearer.auth.credentials.source", bearer, "not with basic.auth")
    if bearer:
        if bearer != "STATIC_TOKEN":
            raise OptionError("bearer.auth.credentials.source", bearer, "STATIC_TOKEN")
        token = _needed(options, "bearer.auth.token").strip()
        if not token.isascii() or not token.isprintable():
            # Here, because http.client would show it.
            raise OptionError("bearer.auth.token", None, "one line of ASCII characters")
        return f"Bearer {token}"
    if source == "USER_INFO":
        user_info = _needed(options, "basic.auth.user.info")
        if ":" not in user_info:
            raise OptionError("basic.auth.user.info", None, "a user and a password, user:password")
    elif source in ("", "URL"):
        if "basic.auth.user.info" in options and not source:
            raise OptionError("basic.auth.credentials.source", None, "USER_INFO is to be set")
        user_info = unquote(address.netloc.rpartition("@")[0])
        if source and not user_info:
            raise OptionError("basic.auth.credentials.source", source, f"{URL} has no user")
    else:
        raise OptionError("basic.auth.credentials.source", source, "USER_INFO or URL")
    return f"Basic {base64.b64encode(user_info.encode()).decode()}" if user_info else ""


def _secrets(authorization: str) -> tuple[str, ...]:
    """Return the secrets that an answer may repeat, longest first."""
    kind, _, given = authorization.partition(" ")
    secrets = {given}
    if kind == "Basic":
        user_info = base64.b64decode(given).decode()
        secrets |= {user_info, user_info.partition(":")[2]}
    return tuple(sorted(secrets - {""}, key=len, reverse=True))


def _identity(options: Mapping[str, str], authorization: str) -> str:
    """Return the option that has the client's login."""
    if options.get("bearer.auth.credentials.source"):
        return "bearer.auth.token"
    if options.get("basic.auth.credentials.source") == "USER_INFO":
        return "basic.auth.user.info"
    if authorization:
        return f"the user in {URL}"
    return "basic.auth.credentials.source and bearer.auth.credentials.source, which are not set"


def _needed(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise OptionError(name, None, "is to be set")
    return options[name]


def _tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Build the context as for Kafka's connections, whose options have the same names."""
    prefix = "schema.registry."
    given = {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}
    for name, value in options.items():
        if name.startswith(f"{prefix}ssl."):
            given[name.removeprefix(prefix)] = value
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if given[name] != "PEM":
            raise OptionError(f"{prefix}{name}", given[name], "PEM")
    try:
        return build_tls_context(given)
    except OptionError as error:
        name = error.name.replace(PREFIX, prefix)
        raise OptionError(name, error.value, error.allowed.replace(PREFIX, prefix)) from None


# Answers --------------------------------------------------------------------------------------


def _has_code(text: bytes, status: int) -> bool:
    """Return whether the answer is a registry's error: its code is the status and two digits.

    Confluent and Apicurio have 40401 for a subject, 40402 for a version, 40403 for a schema.
    """
    try:
        return int(json.loads(text)["error_code"]) // 100 == status
    except (ValueError, KeyError, TypeError):
        return False


def _reason(text: bytes, secrets: tuple[str, ...]) -> str:
    """Return the message of an answer, without secrets that a proxy may repeat in it."""
    try:
        answer = json.loads(text)
        message = f"{answer['message']} ({answer['error_code']})"
    except (ValueError, KeyError, TypeError):
        message = text.decode("latin-1")
        return repr(_without(message, secrets)[:100])
    return _without(message, secrets)


def _without(message: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        message = message.replace(secret, HIDDEN)
    return message


def _id_of(answer: dict[str, Any]) -> int:
    found = answer.get("id")
    if not isinstance(found, int):
        raise RegistryError("the schema registry gave no id for a schema")
    return found


def _schema_of(answer: dict[str, Any], kind: str, what: str) -> str:
    found = answer.get("schemaType", AVRO)
    if found != kind:
        raise RegistryError(f"{what} is a schema of type {found}, and not {kind}")
    if answer.get("references"):
        raise RegistryError(f"{what} has references to other schemas, which are not resolved")
    schema = answer.get("schema")
    if not isinstance(schema, str):
        raise RegistryError(f"the schema registry gave no schema for {what}")
    return schema


class _Registries:
    """Clients of registries by their options, the last that were used."""

    def __init__(self) -> None:
        self.client = lru_cache(maxsize=16)(lambda options: Registry(dict(options)))


def registry_for(options: Mapping[str, str]) -> Registry:
    """Return the process's client of a registry, with the schemas that it has learned."""
    return process_local(_Registries).client(tuple(options.items()))
