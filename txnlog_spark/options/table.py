"""Every option of the connector, declared once: name, reader, default, where it is valid, meaning.

Names and meanings are those of Spark's Kafka connector, `kafka.`-prefixed ones Kafka's own configs,
so that changing `format("kafka")` to `format("txnlog")` is the whole migration. Nothing is ignored
in silence, which is how an exactly-once job becomes an at-least-once one: a config of Kafka's that
only tunes its own clients is taken with a line in the log (`kafka_configs.py`), any other name that
is not in the table is an error. Spark hands options over with lower-cased names, so names are
looked up without regard to case. `client_cache.py`, `source` and `sink` read the parsed values.
"""

from __future__ import annotations

import difflib
import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.host.security_options import SECURITY_OPTIONS, without_effect
from txnlog_spark.errors import OptionError
from txnlog_spark.log_once import warn_once
from txnlog_spark.offsets import parse_offsets, parse_partitions
from txnlog_spark.options import values as to
from txnlog_spark.options.kafka_configs import KAFKA_CONFIGS, PREFIX, Support, config_of
from txnlog_spark.storage.options import (
    STORAGE_OPTIONS,
    STORAGE_PREFIX,
    unused_storage_options,
)

MS_MAX = 2**31 - 1
HINT_RATIO_MIN = 0.75
"""How alike two names must be for one to be a hint for the other; 1 is equal."""

logger = logging.getLogger(__name__)


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


_TIMESTAMPS = to.json_value(parse_offsets, '{"topic":{"0":1718000000000}}')

OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", Use.ALL, to.text, None,
        "Addresses of brokers, host:port,host:port. Either this or `path` must be set.",
    ),
    Option(
        "path", Use.ALL, to.text, None,
        "Directory of an embedded broker, which is started when needed; "
        "`.load(path)`, `.start(path)` and `.save(path)` set it.",
    ),
    Option("kafka.client.id", Use.ALL, to.text, "txnlog", "Name in the brokers' logs and quotas."),
    Option("kafka.request.timeout.ms", Use.ALL, to.integer(1), 30_000, "Timeout of one request."),
    Option(
        "kafka.default.api.timeout.ms", Use.ALL, to.integer(1), 60_000,
        "Timeout of an operation including retries.",
    ),
    Option(
        "kafka.retry.backoff.ms", Use.ALL, to.integer(0, MS_MAX), 20,
        "Pause before the first retry; it doubles with each one.",
    ),
    Option(
        "kafka.retry.backoff.max.ms", Use.ALL, to.integer(0, MS_MAX), 1_000,
        "Longest pause before a retry.",
    ),
    Option(
        "kafka.socket.connection.setup.timeout.ms", Use.ALL, to.integer(1, MS_MAX), 10_000,
        "Timeout of connecting to a broker.",
    ),
    Option(
        "kafka.connections.max.idle.ms", Use.ALL, to.integer(-1, MS_MAX), 540_000,
        "A connection that was not used for longer is closed; -1 keeps it open.",
    ),
    Option(
        "kafka.metadata.max.age.ms", Use.ALL, to.integer(0, MS_MAX), 300_000,
        "How often subscribePattern looks for new topics, and how long a partition is read from a "
        "follower (kafka.client.rack) before its leader is asked again.",
    ),
    *(Option(PREFIX + o.name, Use.ALL, o.read, o.default, o.doc) for o in SECURITY_OPTIONS),
    Option(
        "kafka.group.id", Use.ALL, to.text, None,
        "Consumer group. The sink commits the source offsets to it inside the transaction; the "
        "source starts from it with startingOffsets=committed.", ("group.id",),
    ),
    # what to read
    Option(
        "kafka.client.rack", Use.READ, to.text, None,
        "Rack of the tasks. A broker with a replica.selector.class names a follower in this rack "
        "for reads, instead of the leader.",
    ),
    Option("subscribe", Use.READ, to.topics, None, "Topics to read, separated by commas."),
    Option(
        "subscribePattern", Use.READ, to.text, None,
        "Regular expression (Python's `re`) for the whole names of topics to read.",
    ),
    Option(
        "assign", Use.READ, to.json_value(parse_partitions, '{"topic":[0,1]}'), None,
        'Partitions to read, as JSON such as `{"topic":[0,1]}`.',
    ),
    Option(
        "startingOffsets", Use.READ,
        to.offsets_or(
            "earliest", "latest", "committed", "committedOrEarliest", "committedOrLatest"
        ),
        None,
        "Where a new query starts: latest (default of a stream), earliest (default of a batch), "
        "committed (the group's committed offsets, which must exist), committedOrEarliest or "
        'committedOrLatest (the same for a first start), or JSON such as `{"topic":{"0":23}}` '
        "with -2 as earliest and -1 as latest.",
    ),
    Option(
        "startingOffsetsByTimestamp", Use.READ, _TIMESTAMPS, None,
        "Start at the first record of this time or later: ms by partition, as JSON.",
    ),
    Option(
        "startingTimestamp", Use.READ, to.integer(0), None,
        "Start at the first record of this time or later: ms, for all partitions.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", Use.READ, to.one_of("error", "latest"), "error",
        "What to do when no record is as late as the starting timestamp: error or latest.",
    ),
    Option(
        "endingOffsets", Use.READ_BATCH, to.offsets_or("latest"), "latest",
        "Where a batch ends: latest or JSON as for startingOffsets.",
    ),
    Option(
        "endingOffsetsByTimestamp", Use.READ_BATCH, _TIMESTAMPS, None,
        "End before the first record of this time or later: ms by partition, as JSON.",
    ),
    Option(
        "endingTimestamp", Use.READ_BATCH, to.integer(0), None,
        "End before the first record of this time or later: ms, for all partitions.",
    ),
    # how to read
    Option(
        "failOnDataLoss", Use.READ, to.boolean, True,
        "Stop when records were deleted before they were read; false: log it and go on.",
    ),
    Option("includeHeaders", Use.READ, to.boolean, False, "Add the column headers."),
    Option("minPartitions", Use.READ, to.integer(1), None, "Minimum number of tasks of a read."),
    Option("maxRecordsPerPartition", Use.READ, to.integer(1), None, "Maximum offsets of a task."),
    Option(
        "maxOffsetsPerTrigger", Use.READ_STREAM, to.integer(1), None,
        "Maximum offsets of a micro-batch.",
    ),
    Option(
        "minOffsetsPerTrigger", Use.READ_STREAM, to.integer(1), None,
        "A micro-batch waits until there are so many offsets to read; the first of a run does not.",
    ),
    Option(
        "maxTriggerDelay", Use.READ_STREAM, to.duration_ms, 900_000,
        "With minOffsetsPerTrigger: longest wait, such as 30s or 15m; ms without a unit.",
    ),
    Option(
        "fetchOffset.numRetries", Use.READ, to.integer(1, MS_MAX), 1,
        "How often partitions and offsets are asked for before the query fails, each time for "
        "kafka.default.api.timeout.ms.",
    ),
    Option(
        "fetchOffset.retryIntervalMs", Use.READ, to.integer(0, MS_MAX), 10,
        "Pause between two such tries, in ms.",
    ),
    Option(
        "partition.metadata.cache.ttl.ms", Use.READ_STREAM, to.positive_or_off, -1,
        "How long a query takes the partitions that it found as they are, in ms; new ones, and new "
        "topics of a pattern, are found after that. -1: partitions are asked for once a second, "
        "topics of a pattern once in kafka.metadata.max.age.ms.",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs", Use.READ, to.integer(1, MS_MAX), None,
        "How long a task waits for records before it fails, in ms; without it: "
        "kafka.default.api.timeout.ms.",
    ),
    Option(
        "filterPushdown", Use.READ_BATCH, to.boolean, False,
        "Do not read what filters on topic, partition, offset and timestamp exclude. Needs "
        "spark.sql.python.filterPushdown.enabled=true, as Spark says if it is not.",
    ),
    Option(
        "kafka.isolation.level", Use.READ, to.one_of("read_committed", "read_uncommitted"),
        "read_committed",
        "read_committed leaves out the records of open and aborted transactions, "
        "read_uncommitted includes them.",
    ),
    Option(
        "kafka.fetch.max.bytes", Use.READ, to.integer(1), 50 * 2**20,
        "Maximum size of a Fetch response.",
    ),
    Option(
        "kafka.max.partition.fetch.bytes", Use.READ, to.integer(1), 8 * 2**20,
        "Maximum size of one partition's records in a Fetch response.",
    ),
    # how to write
    Option(
        "topic", Use.WRITE, to.text, None,
        "Topic of all rows; without it each row needs the column topic, which it overrides.",
    ),
    Option(
        "timestampColumn", Use.WRITE, to.text, None,
        "Column with the timestamps of the records; without it: the time of writing.",
    ),
    Option(
        "kafka.transactional.id", Use.WRITE, to.text, None,
        "Transactional id of the query's one producer; without it: made from the group id, else "
        "from the query id. Keep it for all starts. A sink's name is appended to it.",
        ("transactional.id",),
    ),
    Option(
        "kafka.transaction.timeout.ms", Use.WRITE, to.integer(1, MS_MAX), 300_000,
        "The broker aborts a transaction that is open for longer.",
    ),
    Option(
        "kafka.compression.type", Use.WRITE, to.one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "none", "Compression of the record batches: none, gzip, snappy, lz4 or zstd.",
    ),
    Option(
        "kafka.max.request.size", Use.WRITE, to.integer(1024), 2**20,
        "Maximum size of a record batch. One over its topic's max.message.bytes is divided by the "
        "driver, which takes time: set it below that.",
    ),
    Option("kafka.acks", Use.WRITE, to.one_of("all", "-1"), "all", "Exactly-once needs all."),
    Option(
        "kafka.enable.idempotence", Use.WRITE, to.one_of("true"), "true", "Exactly-once needs true."
    ),
    Option(
        "stagingLocation", Use.WRITE, to.text, None,
        "Directory or object store for staged rows that driver and executors share; without it "
        "they are staged on the driver, by the staging server.",
    ),
    Option(
        "stagingHost", Use.WRITE, to.text, None,
        "Host on which executors reach the driver; without it: spark.driver.host.",
    ),
    Option(
        "stagingPort", Use.WRITE, to.integer(0, 65_535), 0,
        "Port on which the driver takes staged rows; 0 for any free one.",
    ),
    Option(
        "stagingBindAddress", Use.WRITE, to.text, None,
        "Address that the driver listens on for staged rows; without it: SPARK_LOCAL_IP, else all.",
    ),
    Option(
        "stagingMemory", Use.WRITE, to.size, 256 * 2**20,
        "Staged rows that the driver keeps in memory, such as 256m; more go to stagingDirectory.",
    ),
    Option(
        "stagingDirectory", Use.WRITE, to.text, None,
        "Local directory of the driver for staged rows beyond stagingMemory; without it: "
        "SPARK_LOCAL_DIRS, else the temporary directory.",
    ),
    Option(
        "stagingDiskSpace", Use.WRITE, to.size, None,
        "Maximum size of the staged rows in stagingDirectory, such as 50g; without it: 90 % of the "
        "free space.",
    ),
    Option(
        "overwriteGroupOffsets", Use.WRITE, to.boolean, False,
        "Let a new query start elsewhere than its group's committed offsets, and overwrite them.",
    ),
    Option(
        "txnAppId", Use.WRITE_BATCH, to.text, None,
        "With txnVersion: makes a batch write idempotent, for each topic by itself, as with Delta "
        "Lake's options of these names.",
    ),
    Option(
        "txnVersion", Use.WRITE_BATCH, to.integer(0, 2**62), None,
        "Rises with each write of a txnAppId; at or below the committed one the write is skipped.",
    ),
    Option(
        "sourceOffsets", Use.WRITE_BATCH, to.json_value(parse_offsets, '{"topic":{"0":23}}'), None,
        "Next offsets to read, as JSON, committed for kafka.group.id in the write's transaction.",
    ),
    Option(
        "checkpointLocation", Use.WRITE, to.text, None,
        "Required as an option of writeStream, as Spark does not pass the session's configuration "
        "to a sink; of write inside foreachBatch only, set by txnlog_spark.foreach_batch.",
    ),
    Option(
        "queryName", Use.WRITE_STREAM, str, None,
        "Name of the query, also in metrics. Spark's DataStreamWriter adds it: `.queryName(...)`.",
    ),
    *(
        Option(STORAGE_PREFIX + o.name, Use.WRITE, o.read, o.default, o.doc)
        for o in STORAGE_OPTIONS
    ),
    Option(
        "sinkName", Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: distinguishes several sinks of one query.",
    ),
    Option(
        "sinkRun", Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: the query's run; set by txnlog_spark.foreach_batch.",
    ),
)  # fmt: skip

_BY_NAME: dict[str, Option] = {
    name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)
}
_SPELLINGS: dict[str, str] = {
    name.lower(): name for option in OPTIONS for name in (option.name, *option.aliases)
}

NO_EFFECT: dict[str, tuple[Use, str]] = {
    "groupIdPrefix": (Use.READ, "a read has no consumer group"),
    **dict.fromkeys(
        ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        (Use.READ_BATCH, "a batch read has no triggers"),
    ),
    "partition.metadata.cache.ttl.ms": (Use.READ_BATCH, "a batch read asks for partitions once"),
    "includeHeaders": (Use.WRITE, "a column headers is written whenever there is one"),
}
"""Options that a job may bring along from Spark's connector: where, and why they mean nothing."""

_NO_EFFECT = {name.lower(): name for name in NO_EFFECT}


def parse_options(options: Mapping[str, str], use: Use) -> dict[str, Any]:
    """The value of every option valid for `use`, defaults filled in, by its declared name.

    Raises OptionError for the first option that is unknown, not valid for `use`, or malformed.
    """
    values = {option.name: option.default for option in OPTIONS if use & option.use}
    given: dict[str, str] = {}
    for name, text in options.items():
        option = _find_option(name, text, use)
        if option is None:
            continue
        spelling = _SPELLINGS[name.lower()]
        if option.name in given:
            raise OptionError(spelling, text, f"remove it: {given[option.name]} is the same option")
        given[option.name] = spelling
        try:
            values[option.name] = option.read(text)
        except ValueError as error:
            raise OptionError(spelling, text, str(error)) from None
    for name, why in without_effect(given, values["kafka.security.protocol"]).items():
        _tell_no_effect(name, why)
    locations = [values.get(name) for name in ("checkpointLocation", "stagingLocation")]
    for name, why in unused_storage_options(given, locations).items():
        _tell_no_effect(name, why)
    return values


def check_cluster(values: Mapping[str, Any]) -> None:
    """Raise OptionError unless exactly one of the options says which cluster is meant.

    There is no default: a forgotten option would send production data to a broker in the working
    directory, and the query would look well.
    """
    servers, path = values["kafka.bootstrap.servers"], values["path"]
    if servers is None and path is None:
        raise OptionError(
            "kafka.bootstrap.servers",
            None,
            "set it to the addresses of the cluster's brokers, such as "
            '.option("kafka.bootstrap.servers", "host:9092"), or give a path for an embedded '
            'broker with its data there, such as .load(".txnlog"), .start(".txnlog") or '
            '.save(".txnlog")',
        )
    if servers is not None and path is not None:
        raise OptionError(
            "path",
            path,
            f"remove it or kafka.bootstrap.servers={servers!r}: path is for an embedded broker, "
            "and only one of them can be meant",
        )
    if path is not None and values["kafka.security.protocol"] != "PLAINTEXT":
        raise OptionError(
            "kafka.security.protocol",
            values["kafka.security.protocol"],
            "remove it: an embedded broker listens on this machine, in PLAINTEXT",
        )


def _find_option(name: str, text: str, use: Use) -> Option | None:
    """The option of this name; None when it is taken without effect, which is logged."""
    lower = name.lower()
    option = _BY_NAME.get(lower)
    if option is not None and use & option.use:
        return option
    if lower in _NO_EFFECT and use & NO_EFFECT[_NO_EFFECT[lower]][0]:
        _tell_no_effect(_NO_EFFECT[lower], NO_EFFECT[_NO_EFFECT[lower]][1])
        return None
    if option is not None and not lower.startswith(PREFIX):
        raise OptionError(_SPELLINGS[lower], None, f"only {_uses(option.use)}; remove it here")
    if option is not None:
        _tell_no_effect(option.name, f"it is only {_uses(option.use)}")
        return None
    if lower in _NO_EFFECT:
        where = _uses(NO_EFFECT[_NO_EFFECT[lower]][0])
        raise OptionError(_NO_EFFECT[lower], None, f"only {where}; remove it here")
    config = config_of(lower)
    if config is None:
        raise OptionError(name, None, f"remove it: this option is not known{_hint(lower)}")
    if config.standing is Support.REFUSED:
        raise OptionError(lower, None, f"remove it: {config.why}")
    if config.allows is not None and not config.allows(text):
        raise OptionError(lower, text, config.allowed)
    _tell_no_effect(lower, config.why)
    return None


def _tell_no_effect(name: str, why: str) -> None:
    warn_once(logger, ("option", name), "option %s has no effect: %s", name, why)


def _hint(lower: str) -> str:
    """The known name that was probably meant. Kafka's names are compared without their prefix.

    The prefix would make all of them look alike, and one may have been forgotten or be too many.
    """
    plain = {n: s for n, s in _SPELLINGS.items() if not n.startswith(PREFIX)}
    kafkas = {n.removeprefix(PREFIX): n for n in KAFKA_CONFIGS}
    wanted = lower.removeprefix(PREFIX)
    own, other = (kafkas, plain) if lower.startswith(PREFIX) else (plain, kafkas)
    if wanted in other:
        return f", did you mean {other[wanted]}?"
    close = difflib.get_close_matches(wanted, own, n=1, cutoff=HINT_RATIO_MIN)
    return f", did you mean {own[close[0]]}?" if close else ""


def _uses(use: Use) -> str:
    words = {
        Use.READ_STREAM: "readStream",
        Use.READ_BATCH: "read",
        Use.WRITE_STREAM: "writeStream",
        Use.WRITE_BATCH: "write",
    }
    return "for " + " and ".join(word for flag, word in words.items() if flag & use)
