"""The options of Confluent's serializers: how to reach a registry, and the subject of a schema."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_spark.errors import OptionError

URL = "schema.registry.url"

REGISTRY_OPTIONS: dict[str, str] = {
    URL: "Addresses of a schema registry with Confluent's REST interface, separated by commas. "
    "Values are then in Confluent's wire format.",
    "basic.auth.credentials.source": "USER_INFO, or URL for a user in schema.registry.url.",
    "basic.auth.user.info": "With USER_INFO: user:password.",
    "bearer.auth.credentials.source": "STATIC_TOKEN.",
    "bearer.auth.token": "With STATIC_TOKEN: the token.",
    "http.connect.timeout.ms": "Timeout of one request to the registry; without it: 60 s.",
    "schema.registry.ssl.truststore.type": "PEM.",
    "schema.registry.ssl.truststore.location": "PEM file of the authorities to trust.",
    "schema.registry.ssl.truststore.certificates": "The same as text.",
    "schema.registry.ssl.keystore.type": "PEM.",
    "schema.registry.ssl.keystore.location": "PEM file of the client's certificate and key.",
    "schema.registry.ssl.key.password": "Password of that key.",
    "schema.registry.ssl.endpoint.identification.algorithm": "Empty: the registry's host name is "
    "not compared with its certificate.",
}
"""Options of the registry's address, certificates and login."""

REGISTRY_PREFIX = "schema.registry."
"""Prefix of Kafka Connect, with which Confluent's clients take their own options as well."""

STRATEGIES = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")


def registry_options(values: Mapping[str, str]) -> dict[str, str]:
    """Return the REGISTRY_OPTIONS among `values`, which may have passwords.

    Raises OptionError without an address.
    """
    given = {name: values[name] for name in REGISTRY_OPTIONS if values.get(name) is not None}
    if given and URL not in given:
        raise OptionError(next(iter(given)), None, f"has a meaning with {URL} only")
    return given


def subject_of(strategy: str, topic: str, side: str, record_name: str) -> str:
    """Return the subject of the schema of a key or value (`side`) by Confluent's strategy.

    `record_name` is the full name of the schema's record, "" for a schema of another type.
    """
    if strategy != "RecordNameStrategy" and not topic:
        raise OptionError("topic", None, f"{strategy} makes the subject's name from it")
    if strategy == "TopicNameStrategy":
        return f"{topic}-{side}"
    if not record_name:
        raise OptionError(f"{side}.subject.name.strategy", strategy, "takes a record's schema")
    return record_name if strategy == "RecordNameStrategy" else f"{topic}-{record_name}"
