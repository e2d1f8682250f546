"""Decisions about each `kafka.*` config of Kafka's own clients.

A job that moves here from Spark's connector brings its configs along. It must not stop at a config
that only tunes a client it no longer has, and it must not continue with a config that would break
exactly-once. So each name is in one of three groups: obeyed (declared in `options.OPTIONS`),
without effect (accepted, and each process logs the reason once), or refused. The names are from
ConsumerConfig, ProducerConfig and AdminClientConfig of Kafka 4.4, and a few from older versions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from txnlog_kafka.host.security_options import SECURITY_OPTIONS

PREFIX = "kafka."
SECURITY_FAMILIES = ("kafka.sasl.", "kafka.ssl.", "kafka.security.")
NOT_YET = "it is not supported yet"
IN_FLIGHT_MAX = 5
"""Kafka's own limit with idempotence: a broker remembers the last five batches of a producer."""


class Support(enum.Enum):
    """Treatment of a config by the connector."""

    SUPPORTED = "obeyed"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Treatment of one config, and its reason. `allows` is true for an accepted value."""

    standing: Support
    why: str = ""
    allows: Callable[[str], bool] | None = None
    allowed: str = ""


def _obeyed(*names: str) -> dict[str, KafkaConfig]:
    return {PREFIX + name: KafkaConfig(Support.SUPPORTED) for name in names}


def _no_effect(why: str, *names: str) -> dict[str, KafkaConfig]:
    return {PREFIX + name: KafkaConfig(Support.NO_EFFECT, why) for name in names}


def _refused(why: str, *names: str) -> dict[str, KafkaConfig]:
    return {PREFIX + name: KafkaConfig(Support.REFUSED, why) for name in names}


def _only(
    name: str, allowed: str, allows: Callable[[str], bool], why: str
) -> dict[str, KafkaConfig]:
    return {PREFIX + name: KafkaConfig(Support.NO_EFFECT, why, allows, allowed)}


def _is(word: str) -> Callable[[str], bool]:
    return lambda text: text.strip().lower() == word


def _at_most_in_flight(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit() and 1 <= int(text) <= IN_FLIGHT_MAX


def _default_partitioner(text: str) -> bool:
    return text.strip().rpartition(".")[2] == "DefaultPartitioner"


_STAGED = "the sink sends each micro-batch as a whole, in record batches of kafka.max.request.size"
_RETRIES = "retries go on until kafka.default.api.timeout.ms"
_NO_MEMBER = "the source is not a member of a consumer group, Spark assigns the partitions"
_FETCHES = "a task fetches its offset range as fast as it can"
_PARTITIONER = "rows without a key or a partition are spread by Kafka's default partitioner"
_METRICS = "there are no client metrics; txnlog_spark.metrics and Spark's progress show a query"
_RECONNECTS = "the pause between attempts is kafka.retry.backoff.ms"
_SOCKETS = "the operating system sizes socket buffers"
_ADDRESSES = "all addresses of a host are tried, and the bootstrap servers when no broker answers"
_COMMITS = "the sink commits offsets inside the transaction"
_BYTES = "are bytes here"

_OPENSSL = "TLS is Python's ssl, with OpenSSL's own choice"


def _security() -> dict[str, KafkaConfig]:
    """Return the treatment of the names of SECURITY_FAMILIES."""
    return {
        **_obeyed(*(option.name for option in SECURITY_OPTIONS)),
        **_no_effect(
            _OPENSSL, "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
            "ssl.secure.random.implementation",
        ),
        **_only(
            "ssl.protocol", "TLS, TLSv1.2 or TLSv1.3; kafka.ssl.enabled.protocols limits them",
            lambda text: text.strip() in ("TLS", "TLSv1.2", "TLSv1.3"),
            "kafka.ssl.enabled.protocols says which versions are used",
        ),
        **_refused(_OPENSSL, "ssl.cipher.suites", "ssl.provider", "security.providers"),
        **_refused("there is no JVM to load it", "ssl.engine.factory.class", "sasl.login.class"),
        **_only(
            "sasl.client.callback.handler.class",
            "leave it out: there is no JVM to load it; of AWS_MSK_IAM it is known",
            lambda text: text.strip().rpartition(".")[2] == "IAMClientCallbackHandler",
            "AWS's signer for Python does the same",
        ),
        **_no_effect(
            "a token is kept for 80 % of its life", "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
        ),
        **_no_effect(
            "a token is asked for again with each attempt to connect",
            "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms",
        ),
        **_refused(
            "GSSAPI (Kerberos) is not supported yet",
            *(f"sasl.kerberos.{name}" for name in (
                "kinit.cmd", "min.time.before.relogin", "service.name", "ticket.renew.jitter",
                "ticket.renew.window.factor",
            )),
        ),
        **_no_effect(
            "only the broker looks into a token",
            *(f"sasl.oauthbearer.{name}" for name in (
                "clock.skew.seconds", "expected.audience", "expected.issuer",
                "jwks.endpoint.refresh.ms", "jwks.endpoint.retry.backoff.max.ms",
                "jwks.endpoint.retry.backoff.ms", "jwks.endpoint.url", "jwt.validator.class",
                "scope.claim.name", "sub.claim.name",
            )),
        ),
        **_refused(
            NOT_YET, "sasl.oauthbearer.jwt.retriever.class",
            *(f"sasl.oauthbearer.assertion.{name}" for name in (
                "algorithm", "claim.aud", "claim.exp.seconds", "claim.iss", "claim.jti.include",
                "claim.nbf.seconds", "claim.sub", "file", "private.key.file",
                "private.key.passphrase", "template.file",
            )),
        ),
    }  # fmt: skip


KAFKA_CONFIGS: dict[str, KafkaConfig] = {
    **_obeyed(
        "bootstrap.servers", "client.id", "request.timeout.ms", "default.api.timeout.ms",
        "group.id", "isolation.level", "fetch.max.bytes",
        "max.partition.fetch.bytes", "transactional.id", "transaction.timeout.ms",
        "compression.type", "max.request.size", "acks", "enable.idempotence",
        "metadata.max.age.ms", "retry.backoff.ms", "retry.backoff.max.ms",
        "connections.max.idle.ms", "socket.connection.setup.timeout.ms", "client.rack",
        "metadata.cluster.check.enable",
    ),
    # without effect
    **_no_effect(
        _STAGED, "linger.ms", "batch.size", "buffer.memory", "buffer.memory.allocation.strategy",
        "max.block.ms",
    ),
    **_no_effect(_RETRIES, "retries", "delivery.timeout.ms"),
    **_no_effect(
        _NO_MEMBER, "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms",
        "partition.assignment.strategy", "group.protocol", "group.remote.assignor",
        "share.acknowledgement.mode", "share.acquire.mode",
    ),
    **_no_effect(_FETCHES, "max.poll.records", "fetch.min.bytes", "fetch.max.wait.ms"),
    **_no_effect(
        _PARTITIONER, "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms", "partitioner.rack.aware",
    ),
    **_no_effect(
        _METRICS, "metric.reporters", "metrics.num.samples", "metrics.recording.level",
        "metrics.sample.window.ms", "enable.metrics.push", "auto.include.jmx.reporter",
    ),
    **_no_effect(_RECONNECTS, "reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    **_no_effect(
        "an attempt to connect takes kafka.socket.connection.setup.timeout.ms at most",
        "socket.connection.setup.timeout.max.ms",
    ),
    **_no_effect(_SOCKETS, "receive.buffer.bytes", "send.buffer.bytes"),
    **_no_effect(
        _ADDRESSES, "client.dns.lookup", "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms", "bootstrap.resolve.timeout.ms",
    ),
    **_no_effect("metadata is asked for when it is needed", "metadata.max.idle.ms"),
    **_no_effect(_COMMITS, "auto.commit.interval.ms"),
    **_no_effect("the codec's default level is used", "compression.gzip.level",
                 "compression.lz4.level", "compression.zstd.level"),
    **_no_effect("the CRC of every batch is checked", "check.crcs"),
    **_no_effect("a read never creates a topic, a write does as the broker's "
                 "auto.create.topics.enable says", "allow.auto.create.topics"),
    **_no_effect("internal to Kafka's consumer",
                 "internal.throw.on.fetch.stable.offset.unsupported",
                 "internal.leave.group.on.close"),
    # without effect as long as the value is harmless
    **_only("max.in.flight.requests.per.connection", f"an integer from 1 to {IN_FLIGHT_MAX}: more "
            "could reorder records", _at_most_in_flight, "requests keep their order"),
    **_only("enable.auto.commit", f"false: {_COMMITS}", _is("false"), _COMMITS),
    **_only("transaction.two.phase.commit.enable", "false: the sink ends its own transactions",
            _is("false"), "the sink ends its own transactions"),
    **_only("exclude.internal.topics", "true: subscribePattern never matches internal topics",
            _is("true"), "subscribePattern never matches internal topics"),
    **_only("partitioner.ignore.keys", "false: the key chooses the partition; to choose it "
            "yourself, add a column partition", _is("false"), _PARTITIONER),
    **_only("partitioner.class", "leave it out: there is no JVM producer to load it; to choose "
            "the partition yourself, add a column partition", _default_partitioner, _PARTITIONER),
    # refused
    **_refused("use startingOffsets", "auto.offset.reset"),
    **_refused(f"keys {_BYTES}; use expressions on the column key", "key.deserializer"),
    **_refused(f"values {_BYTES}; use expressions on the column value", "value.deserializer"),
    **_refused(f"keys {_BYTES}; cast the column key", "key.serializer"),
    **_refused(f"values {_BYTES}; cast the column value", "value.serializer"),
    **_refused("there is no JVM consumer or producer to intercept", "interceptor.classes"),
    **_refused(f"{_NO_MEMBER}, so it cannot be a static one", "group.instance.id"),
    **_refused("values are taken as they are, no provider is asked for them", "config.providers"),
    **_refused("controllers cannot be asked for records; name brokers with "
               "kafka.bootstrap.servers", "bootstrap.controllers"),
    **_security(),
}  # fmt: skip
"""Configs by name, with the prefix."""


def config_of(lower_name: str) -> KafkaConfig | None:
    """Return the config of this lower-cased name, or None if Kafka does not know the name.

    A security name that is missing in the table is refused too.
    """
    known = KAFKA_CONFIGS.get(lower_name)
    if known is None and lower_name.startswith(SECURITY_FAMILIES):
        return KafkaConfig(Support.REFUSED, NOT_YET)
    return known
