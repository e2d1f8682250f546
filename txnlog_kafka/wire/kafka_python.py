"""Everything of kafka-python that its documentation does not promise and that we lean on.

Its message classes are compiled from Kafka's own definitions. What is here reaches behind them:
structs made without their slow constructor, decoders called at just one version, the
schema of a class, its packages without what they import, its SASL mechanisms without its
connections, and classes of our own definitions
(the records of the internal topics, which kafka-python does not ship). Another release of
kafka-python may change any of it: setup.cfg keeps to 3.0, and a test names each use.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from txnlog_kafka.wire import kafka_packages as _before_kafka_python  # noqa: F401

# isort: split

from kafka.protocol.api_data import ApiData


def message_class(module: str, name: str) -> Any:
    """The class of a request or an answer, in a module of `kafka.protocol`."""
    return getattr(importlib.import_module(f"kafka.protocol.{module}"), name)


def build(struct_class: Any, **fields: Any) -> Any:
    """A struct with these fields, as its class would make it in three times the time.

    So kafka-python's own decoder makes them. The names are not checked: for answers and records of
    which there are many, and which tests encode and decode.
    """
    made = object.__new__(struct_class)
    made._version = made.tags = made.unknown_tags = None
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def decode_at(message_class: Any, version: int, body: memoryview) -> Any:
    """The message or record of these bytes, whose shape has been checked, at just this version:
    kafka-python's own `decode` takes every ApiVersions answer with an error for one of version 0.

    Raises UnicodeDecodeError, and ValueError for a version that there is not.
    """
    return _decoder(message_class, version)(body, 0)[0]


@functools.cache
def _decoder(message_class: Any, version: int) -> Any:
    if not 0 <= version <= message_class.max_version:
        raise ValueError(f"{message_class.name} has no version {version}")
    flexible = message_class.flexible_version_q(version)
    return schema_of(message_class).compiled_decode_from(
        version, compact=flexible, tagged=flexible, data_class=message_class
    )


def schema_of(message_class: Any) -> Any:
    """The top struct of a message's or record's definition."""
    return message_class._struct


def tagged_fields_of(struct: Any, version: int) -> dict[int, Any]:
    """Tag -> field of a struct at a version."""
    found: dict[int, Any] = struct.tagged_fields(version)._tags
    return found


def data_class(name: str, package: str | None = None) -> Any:
    """The class of the definition `name`.json, of type "data", in a package or kafka-python's."""
    return type(ApiData)(name, (ApiData,), {}, load_json=package)


def password_mechanism(name: str, user: str, password: str) -> Any:
    """The client's side of PLAIN or SCRAM: `auth_bytes`, `receive`, `is_done`.

    SCRAM names are escaped as RFC 5802 writes them, which kafka-python leaves to its caller.
    """
    from kafka.net.sasl import get_sasl_mechanism  # few connections need it

    if name != "PLAIN":
        user = user.replace("=", "=3D").replace(",", "=2C")
    return get_sasl_mechanism(name)(
        sasl_mechanism=name,
        sasl_plain_username=user,
        sasl_plain_password=password,
        # It is for a warning alone, which the user's own choice of a protocol needs no more.
        security_protocol="SASL_SSL",
    )


def token_mechanism(token: str, extensions: Mapping[str, str]) -> Any:
    """The client's side of OAUTHBEARER with a token that is there already."""
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider

    AbstractTokenProvider.register(_GivenToken)
    provider = _GivenToken(token, extensions)
    return get_sasl_mechanism("OAUTHBEARER")(sasl_oauth_token_provider=provider)


class _GivenToken:
    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self._token = token
        self._extensions = extensions

    def token(self) -> str:
        return self._token

    def extensions(self) -> Mapping[str, str]:
        return self._extensions
