"""Every option of the connector, declared once: name, reader, default, where it is valid, meaning.

Names and meanings are those of Spark's Kafka connector, `kafka.`-prefixed ones Kafka's own configs,
so that changing `format("kafka")` to `format("txnlog")` is the whole migration. An option that is
not in the table is an error that names it: a silently ignored option is how an exactly-once job
becomes an at-least-once one. Spark hands options over with lower-cased names, so names are looked
up without regard to case. `connection.py`, `source` and `sink` read the parsed values.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_spark.errors import OptionError
from txnlog_spark.offsets import OffsetFormatError, parse_offsets, parse_partitions


class Use(enum.Flag):
    """What the data source is used for: each option says for which of them it is valid."""

    READ_STREAM = enum.auto()
    READ_BATCH = enum.auto()
    WRITE_STREAM = enum.auto()
    WRITE_BATCH = enum.auto()
    READ = READ_STREAM | READ_BATCH
    WRITE = WRITE_STREAM | WRITE_BATCH
    ALL = READ | WRITE


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `read` makes its value from text and raises ValueError saying what is allowed."""

    name: str
    use: Use
    read: Callable[[str], Any]
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a non-empty text")
    return text.strip()


def _boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("true or false")
    return value


def _integer(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            upper = "" if maximum == 2**63 - 1 else f" and at most {maximum}"
            raise ValueError(f"an integer of at least {minimum}{upper}")
        return value

    return read


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError(" or ".join(allowed))
        return value

    return read


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("topic names separated by commas")
    return topics


def _json(read: Callable[[str], Any], example: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return read(text)
        except OffsetFormatError as error:
            raise ValueError(f"JSON such as {example} ({error})") from None

    return parse


def _offsets_or(*words: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        word = {each.lower(): each for each in words}.get(text.strip().lower())
        if word is not None:
            return word
        try:
            return parse_offsets(text)
        except OffsetFormatError as error:
            choice = ", ".join(words)
            raise ValueError(f'{choice} or JSON such as {{"topic":{{"0":23}}}} ({error})') from None

    return read


_TIMESTAMPS = _json(parse_offsets, '{"topic":{"0":1718000000000}}')
_SERVERS_DOC = "host:port,host:port of the cluster; without it and `path`: an embedded broker"

OPTIONS: tuple[Option, ...] = (
    Option("kafka.bootstrap.servers", Use.ALL, _text, None, _SERVERS_DOC),
    Option("path", Use.ALL, _text, None, "directory of an embedded broker, started when needed"),
    Option("kafka.client.id", Use.ALL, _text, "txnlog", "name in the broker's logs and quotas"),
    Option("kafka.request.timeout.ms", Use.ALL, _integer(1), 30_000, "for one answer"),
    Option("kafka.default.api.timeout.ms", Use.ALL, _integer(1), 60_000, "with all retries"),
    Option("kafka.security.protocol", Use.ALL, _text, "PLAINTEXT", "PLAINTEXT only, so far"),
    Option(
        "kafka.group.id", Use.ALL, _text, None,
        "consumer group: the sink commits the source offsets to it inside the transaction, the "
        "source resumes from it with startingOffsets=committed", ("group.id",),
    ),
    # what to read
    Option("subscribe", Use.READ, _topics, None, "topics, separated by commas"),
    Option("subscribePattern", Use.READ, _text, None, "Java-style regular expression of topics"),
    Option(
        "assign", Use.READ, _json(parse_partitions, '{"topic":[0,1]}'), None, "single partitions"
    ),
    Option(
        "startingOffsets", Use.READ,
        _offsets_or("earliest", "latest", "committed", "committedOrEarliest", "committedOrLatest"),
        None,
        "where a new query starts: latest (default of a stream), earliest (of a batch), committed "
        "(the group's committed offsets, which must exist), committedOrEarliest or "
        "committedOrLatest (for a first start), or JSON with -2 as earliest and -1 as latest",
    ),
    Option("startingOffsetsByTimestamp", Use.READ, _TIMESTAMPS, None, "ms per partition"),
    Option("startingTimestamp", Use.READ, _integer(0), None, "ms for all partitions"),
    Option(
        "startingOffsetsByTimestampStrategy", Use.READ, _one_of("error", "latest"), "error",
        "when no record is as late as the timestamp",
    ),
    Option("endingOffsets", Use.READ_BATCH, _offsets_or("latest"), "latest", "where a batch ends"),
    Option("endingOffsetsByTimestamp", Use.READ_BATCH, _TIMESTAMPS, None, "ms per partition"),
    Option("endingTimestamp", Use.READ_BATCH, _integer(0), None, "ms for all partitions"),
    # how to read
    Option("failOnDataLoss", Use.READ, _boolean, True, "stop when records are gone unread"),
    Option("includeHeaders", Use.READ, _boolean, False, "add the column headers"),
    Option("minPartitions", Use.READ, _integer(1), None, "split to at least as many tasks"),
    Option("maxRecordsPerPartition", Use.READ, _integer(1), None, "offsets per task, at most"),
    Option("maxOffsetsPerTrigger", Use.READ_STREAM, _integer(1), None, "offsets per micro-batch"),
    Option(
        "kafka.isolation.level", Use.READ, _one_of("read_committed", "read_uncommitted"),
        "read_committed", "whether records of open and aborted transactions are left out",
    ),
    Option("kafka.fetch.max.bytes", Use.READ, _integer(1), 50 * 2**20, "of one Fetch answer"),
    Option(
        "kafka.max.partition.fetch.bytes", Use.READ, _integer(1), 8 * 2**20, "of one partition"
    ),
    # how to write
    Option("topic", Use.WRITE, _text, None, "topic of all rows; wins over the column topic"),
    Option(
        "timestampColumn", Use.WRITE, _text, None,
        "column with the records' timestamps; without it: the time of writing",
    ),
    Option(
        "kafka.transactional.id", Use.WRITE, _text, None,
        "names the one producer; without it: made from the group id, else from the query id",
        ("transactional.id",),
    ),
    Option(
        "kafka.transaction.timeout.ms", Use.WRITE, _integer(1, 2**31 - 1), 300_000,
        "the broker aborts a transaction that is open for longer",
    ),
    Option(
        "kafka.compression.type", Use.WRITE, _one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "none", "of the record batches",
    ),
    Option("kafka.max.request.size", Use.WRITE, _integer(1024), 2**20, "largest record batch"),
    Option("kafka.acks", Use.WRITE, _one_of("all", "-1"), "all", "exactly-once needs all"),
    Option("kafka.enable.idempotence", Use.WRITE, _one_of("true"), "true", "always on"),
    Option(
        "stagingLocation", Use.WRITE, _text, None,
        "directory that all executors and the driver share; default: inside the checkpoint",
    ),
    Option(
        "overwriteGroupOffsets", Use.WRITE_STREAM, _boolean, False,
        "let a new query start elsewhere than the group's committed offsets, and overwrite them",
    ),
    Option(
        "txnAppId", Use.WRITE_BATCH, _text, None,
        "with txnVersion: makes a batch write idempotent, as Delta Lake's options of these names",
    ),
    Option(
        "txnVersion", Use.WRITE_BATCH, _integer(0, 2**62), None,
        "rises with each write of a txnAppId; at or below the committed one the write is skipped",
    ),
    Option(
        "sourceOffsets", Use.WRITE_BATCH, _json(parse_offsets, '{"topic":{"0":23}}'), None,
        "next offsets to read, committed for kafka.group.id in the write's transaction",
    ),
    Option(
        "checkpointLocation", Use.WRITE_STREAM, _text, None,
        "must be an option: Spark does not tell a sink what the session's configuration says",
    ),
)  # fmt: skip

_BY_NAME: dict[str, Option] = {
    name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)
}

REFUSED: dict[str, str] = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are read as bytes; use expressions on the column key",
    "kafka.value.deserializer": "values are read as bytes; use expressions on the column value",
    "kafka.key.serializer": "keys are written as bytes; cast the column key",
    "kafka.value.serializer": "values are written as bytes; cast the column value",
    "kafka.enable.auto.commit": "the sink commits offsets inside the transaction",
    "kafka.interceptor.classes": "there is no JVM consumer or producer to intercept",
}
"""Options that have no meaning here, and what to use instead."""

NOT_YET = frozenset(
    {
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "groupIdPrefix",
        "kafka.linger.ms",
        "kafka.batch.size",
        "kafka.partitioner.class",
        "kafka.ssl.truststore.location",
        "kafka.sasl.mechanism",
        "kafka.sasl.jaas.config",
    }
)
"""Options of Spark's connector and of Kafka that people use, and that are not there yet."""

_NOT_YET_BY_NAME = {name.lower(): name for name in NOT_YET}


def parse_options(options: Mapping[str, str], use: Use) -> dict[str, Any]:
    """The value of every option valid for `use`, defaults filled in, by its declared name.

    Raises OptionError for the first option that is unknown, not valid for `use`, or malformed.
    """
    values = {option.name: option.default for option in OPTIONS if use & option.use}
    given: dict[str, str] = {}
    for name, text in options.items():
        option = _find_option(name, use)
        if option.name in given:
            raise OptionError(name, text, f"leave it out: {given[option.name]} says the same")
        given[option.name] = name
        try:
            values[option.name] = option.read(text)
        except ValueError as error:
            raise OptionError(option.name, text, str(error)) from None
    security = values["kafka.security.protocol"]
    if security.upper() != "PLAINTEXT":
        raise OptionError(
            "kafka.security.protocol", security, "PLAINTEXT (TLS and SASL are not there yet)"
        )
    return values


def _find_option(name: str, use: Use) -> Option:
    lower = name.lower()
    option = _BY_NAME.get(lower)
    if option is not None and use & option.use:
        return option
    if option is not None:
        raise OptionError(option.name, None, f"only {_uses(option.use)}; remove it here")
    if lower in REFUSED:
        raise OptionError(name, None, f"remove it: {REFUSED[lower]}")
    if lower in _NOT_YET_BY_NAME:
        raise OptionError(_NOT_YET_BY_NAME[lower], None, "remove it: it is not there yet")
    close = difflib.get_close_matches(lower, _BY_NAME, n=1)
    hint = f"did you mean {_BY_NAME[close[0]].name}?" if close else "it is not there yet"
    raise OptionError(name, None, f"remove it: this option is not known, {hint}")


def _uses(use: Use) -> str:
    words = {
        Use.READ_STREAM: "readStream",
        Use.READ_BATCH: "read",
        Use.WRITE_STREAM: "writeStream",
        Use.WRITE_BATCH: "write",
    }
    return "for " + " and ".join(word for flag, word in words.items() if flag & use)
