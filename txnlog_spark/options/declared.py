"""Every option of the connector, declared once: name, setting, where it is valid, reader, default.

Names and meanings are those of Spark's Kafka connector, `kafka.`-prefixed ones Kafka's own configs,
so that changing `format("kafka")` to `format("txnlog")` is the whole migration.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.host.security_options import SECURITY_OPTIONS
from txnlog_spark.offsets import parse_offsets, parse_partitions
from txnlog_spark.options import option_types as to
from txnlog_spark.options.kafka_configs import PREFIX
from txnlog_spark.schema_registry.options import REGISTRY_OPTIONS, REGISTRY_PREFIX, STRATEGIES
from txnlog_spark.storage.options import STORAGE_OPTIONS, STORAGE_PREFIX

MS_MAX = 2**31 - 1


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
    sets: str
    """The settings that have its value, such as `read.group_id write.group_id`."""
    use: Use
    read: Callable[[str], Any]
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()


def _format_options(side: str) -> tuple[Option, ...]:
    """The options that say how the keys or the values (`side`) are encoded."""
    return (
        Option(
            f"{side}.format",
            "read.formats write.formats",
            Use.ALL,
            to.one_of("binary", "string", "json", "avro", "protobuf"),
            "binary",
            f"How a {side} is encoded: binary (as it is), string, json, avro or protobuf.",
        ),
        Option(
            f"{side}.schema",
            "read.formats write.formats",
            Use.ALL,
            to.text,
            None,
            f"Schema of a {side}: for json DDL or a JSON Schema, for avro the Avro schema, for "
            "protobuf the path of a descriptor set on the driver. Without it: from the registry.",
        ),
        Option(
            f"{side}.message.name",
            "read.formats write.formats",
            Use.ALL,
            to.text,
            None,
            "For protobuf: full name of the message; without it: the first of the schema.",
        ),
        Option(
            f"{side}.subject",
            "read.formats write.formats",
            Use.ALL,
            to.text,
            None,
            f"Subject of the schema in the registry; without it: {side}.subject.name.strategy.",
        ),
        Option(
            f"{side}.subject.name.strategy",
            "read.formats write.formats",
            Use.ALL,
            to.class_name(*STRATEGIES),
            STRATEGIES[0],
            f"What the subject is called: {', '.join(STRATEGIES)}.",
        ),
        *_one_way_options(side),
    )


def _one_way_options(side: str) -> tuple[Option, ...]:
    """Those that only a read has, or only a write."""
    return (
        Option(
            f"{side}.fields",
            "read.formats",
            Use.READ,
            to.field_paths,
            None,
            "Fields to decode, such as `id,customer.name`, dots in backticks; without it: all.",
        ),
        Option(
            f"{side}.mode",
            "read.formats",
            Use.READ,
            to.one_of("failfast", "permissive"),
            "failfast",
            f"FAILFAST: a malformed {side} is an error. PERMISSIVE: it is null, and the columns "
            f"{side}_bytes and {side}_error say what and why.",
        ),
        Option(
            f"{side}.columns",
            "write.formats",
            Use.WRITE,
            to.topics,
            None,
            f"Columns that are the fields of the {side}, separated by commas, or * for all that "
            f"have no other meaning; without it: the column {side}.",
        ),
    )


_TIMESTAMPS = to.json_value(parse_offsets, '{"topic":{"0":1718000000000}}')

OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", "connection.bootstrap_servers",
        Use.ALL, to.text, None,
        "Addresses of brokers, host:port,host:port. Either this or `path` must be set.",
    ),
    Option(
        "path", "connection.path",
        Use.ALL, to.local_directory, None,
        "Directory of an embedded broker, a path or a `file:` URI, which is started when needed, "
        "and made by the first write; `.load(path)`, `.start(path)` and `.save(path)` set it.",
    ),
    Option(
        "kafka.client.id", "connection.client_id",
        Use.ALL, to.text, "txnlog",
        "Name in the brokers' logs and quotas.",
    ),
    Option(
        "kafka.request.timeout.ms", "session.request_timeout_ms",
        Use.ALL, to.integer(1), 30_000,
        "Timeout of one request.",
    ),
    Option(
        "kafka.default.api.timeout.ms", "session.operation_timeout_ms",
        Use.ALL, to.integer(1), 60_000,
        "Timeout of an operation including retries.",
    ),
    Option(
        "kafka.retry.backoff.ms", "session.retry_backoff_ms",
        Use.ALL, to.integer(0, MS_MAX), 20,
        "Pause before the first retry; it doubles with each one.",
    ),
    Option(
        "kafka.retry.backoff.max.ms", "session.retry_backoff_max_ms",
        Use.ALL, to.integer(0, MS_MAX), 1_000,
        "Longest pause before a retry.",
    ),
    Option(
        "kafka.socket.connection.setup.timeout.ms", "connection.connect_timeout_ms",
        Use.ALL, to.integer(1, MS_MAX), 10_000,
        "Timeout of connecting to a broker.",
    ),
    Option(
        "kafka.connections.max.idle.ms", "connection.idle_ms_max",
        Use.ALL, to.integer(-1, MS_MAX), 540_000,
        "A connection that was not used for longer is closed; -1 keeps it open.",
    ),
    Option(
        "kafka.metadata.max.age.ms", "session.read_replica_ms read.metadata_max_age_ms",
        Use.ALL, to.integer(0, MS_MAX), 300_000,
        "How often subscribePattern looks for new topics, and how long a partition is read from a "
        "follower (kafka.client.rack) before its leader is asked again.",
    ),
    *(
        Option(PREFIX + o.name, "connection.security", Use.ALL, o.read, o.default, o.doc)
        for o in SECURITY_OPTIONS
    ),
    Option(
        "kafka.group.id", "read.group_id write.group_id",
        Use.ALL, to.text, None,
        "Consumer group. The sink commits the source offsets to it inside the transaction; the "
        "source starts from it with startingOffsets=committed.",
        ("group.id",),
    ),
    # how keys and values are encoded
    *_format_options("value"),
    *_format_options("key"),
    *(
        Option(
            name, "read.formats write.formats", Use.ALL, to.any_text, None, doc,
            () if name.startswith(REGISTRY_PREFIX) else (REGISTRY_PREFIX + name,),
        )
        for name, doc in REGISTRY_OPTIONS.items()
    ),
    Option(
        "auto.register.schemas", "write.formats",
        Use.WRITE, to.boolean, False,
        "Register the schema that is written with; without it, it must be registered.",
    ),
    Option(
        "use.latest.version", "write.formats",
        Use.WRITE, to.boolean, False,
        "Write with the latest schema of the subject.",
    ),
    Option(
        "recursiveFieldMaxDepth", "read.formats",
        Use.READ, to.integer(-1, 15), -1,
        "How often an Avro record may be inside itself; below 1: such schemas are refused.",
    ),
    Option(
        "timeZone", "read.formats write.formats",
        Use.ALL, to.text, None,
        "Time zone of JSON timestamps without one; without it: spark.sql.session.timeZone.",
    ),
    # what to read
    Option(
        "kafka.client.rack", "session.rack_id",
        Use.READ, to.text, None,
        "Rack of the tasks. A broker with a replica.selector.class names a follower in this rack "
        "for reads, instead of the leader.",
    ),
    Option(
        "subscribe", "read.selection",
        Use.READ, to.topics, None,
        "Topics to read, separated by commas.",
    ),
    Option(
        "subscribePattern", "read.selection",
        Use.READ, to.pattern, None,
        "Regular expression (Python's `re`) for the whole names of topics to read.",
    ),
    Option(
        "assign", "read.selection",
        Use.READ, to.json_value(parse_partitions, '{"topic":[0,1]}'), None,
        'Partitions to read, as JSON such as `{"topic":[0,1]}`.',
    ),
    Option(
        "startingOffsets", "read.starting",
        Use.READ,
        to.offsets_or(
            "earliest", "latest", "committed", "committedOrEarliest", "committedOrLatest"
        ),
        None,
        "Where a new query starts: latest (default of a stream), earliest (default of a batch), "
        "committed (the group's committed offsets, which must exist), committedOrEarliest or "
        'committedOrLatest (the same for a first start), or JSON such as `{"topic":{"0":23}}` with '
        "-2 as earliest and -1 as latest.",
    ),
    Option(
        "startingOffsetsByTimestamp", "read.starting",
        Use.READ, _TIMESTAMPS, None,
        "Start at the first record of this time or later: ms by partition, as JSON.",
    ),
    Option(
        "startingTimestamp", "read.starting",
        Use.READ, to.integer(0), None,
        "Start at the first record of this time or later: ms, for all partitions.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "read.starting",
        Use.READ, to.one_of("error", "latest"), "error",
        "What to do when no record is as late as the starting timestamp: error or latest.",
    ),
    Option(
        "endingOffsets", "read.ending",
        Use.READ_BATCH, to.offsets_or("latest"), "latest",
        "Where a batch ends: latest or JSON as for startingOffsets.",
    ),
    Option(
        "endingOffsetsByTimestamp", "read.ending",
        Use.READ_BATCH, _TIMESTAMPS, None,
        "End before the first record of this time or later: ms by partition, as JSON.",
    ),
    Option(
        "endingTimestamp", "read.ending",
        Use.READ_BATCH, to.integer(0), None,
        "End before the first record of this time or later: ms, for all partitions.",
    ),
    # how to read
    Option(
        "failOnDataLoss", "read.fail_on_data_loss write.fail_on_data_loss",
        Use.ALL, to.boolean, True,
        "Stop when records were deleted before they were read, or when the output topic of a "
        "streaming query was deleted and created again; false: log it and go on.",
    ),
    Option(
        "includeHeaders", "read.include_headers",
        Use.READ, to.boolean, False,
        "Add the column headers.",
    ),
    Option(
        "minPartitions", "read.min_partitions",
        Use.READ, to.integer(1), None,
        "Minimum number of tasks of a read.",
    ),
    Option(
        "maxRecordsPerPartition", "read.max_records_per_partition",
        Use.READ, to.integer(1), None,
        "Maximum offsets of a task.",
    ),
    Option(
        "maxOffsetsPerTrigger", "read.max_offsets_per_trigger",
        Use.READ_STREAM, to.integer(1), None,
        "Maximum offsets of a micro-batch.",
    ),
    Option(
        "minOffsetsPerTrigger", "read.min_offsets_per_trigger",
        Use.READ_STREAM, to.integer(1), None,
        "A micro-batch waits until there are so many offsets to read; the first of a run does not.",
    ),
    Option(
        "maxTriggerDelay", "read.trigger_delay_ms_max",
        Use.READ_STREAM, to.duration_ms, 900_000,
        "With minOffsetsPerTrigger: longest wait, such as 30s or 15m; ms without a unit.",
    ),
    Option(
        "fetchOffset.numRetries", "read.offset_attempts",
        Use.READ, to.integer(1, MS_MAX), 1,
        "How often partitions and offsets are asked for before the query fails, each time for "
        "kafka.default.api.timeout.ms.",
    ),
    Option(
        "fetchOffset.retryIntervalMs", "read.offset_retry_ms",
        Use.READ, to.integer(0, MS_MAX), 10,
        "Pause between two such tries, in ms.",
    ),
    Option(
        "partition.metadata.cache.ttl.ms", "read.partition_cache_ms",
        Use.READ_STREAM, to.positive_or_off, -1,
        "How long a query takes the partitions that it found as they are, in ms; new ones, and new "
        "topics of a pattern, are found after that. -1: partitions are asked for once a second, "
        "topics of a pattern once in kafka.metadata.max.age.ms.",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs", "read.poll_timeout_ms",
        Use.READ, to.integer(1, MS_MAX), None,
        "How long a task waits for records before it fails, in ms; without it: "
        "kafka.default.api.timeout.ms.",
    ),
    Option(
        "filterPushdown", "read.filter_pushdown",
        Use.READ_BATCH, to.boolean, False,
        "Do not read what filters on topic, partition, offset and timestamp exclude. Needs "
        "spark.sql.python.filterPushdown.enabled=true, as Spark says if it is not.",
    ),
    Option(
        "kafka.isolation.level", "read.isolation_level",
        Use.READ, to.one_of("read_committed", "read_uncommitted"), "read_committed",
        "read_committed leaves out the records of open and aborted transactions, read_uncommitted "
        "includes them.",
    ),
    Option(
        "kafka.fetch.max.bytes", "read.fetch_bytes_max",
        Use.READ, to.integer(1), 50 * 2**20,
        "Maximum size of a Fetch response.",
    ),
    Option(
        "kafka.max.partition.fetch.bytes", "read.partition_fetch_bytes_max",
        Use.READ, to.integer(1), 8 * 2**20,
        "Maximum size of one partition's records in a Fetch response.",
    ),
    # how to write
    Option(
        "topic", "write.topic",
        Use.WRITE, to.text, None,
        "Topic of all rows; without it each row needs the column topic, which it overrides.",
    ),
    Option(
        "timestampColumn", "write.timestamp_column",
        Use.WRITE, to.text, None,
        "Column with the timestamps of the records; without it: the time of writing.",
    ),
    Option(
        "kafka.transactional.id", "write.transactional_id",
        Use.WRITE, to.text, None,
        "Transactional id of the query's one producer; without it: made from the group id, else "
        "from the query id. Keep it for all starts. A sink's name is appended to it.",
        ("transactional.id",),
    ),
    Option(
        "kafka.transaction.timeout.ms", "write.transaction_timeout_ms",
        Use.WRITE, to.integer(1, MS_MAX), 300_000,
        "The broker aborts a transaction that is open for longer.",
    ),
    Option(
        "kafka.compression.type", "write.compression",
        Use.WRITE, to.one_of("none", "gzip", "snappy", "lz4", "zstd"), "none",
        "Compression of the record batches: none, gzip, snappy, lz4 or zstd.",
    ),
    Option(
        "kafka.max.request.size", "write.record_batch_bytes_max",
        Use.WRITE, to.integer(1024), 2**20,
        "Maximum size of a record batch. One over its topic's max.message.bytes is divided by the "
        "driver, which takes time: set it below that.",
    ),
    Option(
        "kafka.acks", "",
        Use.WRITE, to.one_of("all", "-1"), "all",
        "Exactly-once needs all.",
    ),
    Option(
        "kafka.enable.idempotence", "",
        Use.WRITE, to.one_of("true"), "true",
        "Exactly-once needs true.",
    ),
    Option(
        "stagingLocation", "write.staging_location",
        Use.WRITE, to.text, None,
        "Directory or object store for staged rows that driver and executors share; without it "
        "they are staged on the driver, by the staging server.",
    ),
    Option(
        "stagingHost", "staging.host",
        Use.WRITE, to.text, None,
        "Host on which executors reach the driver; without it: spark.driver.host.",
    ),
    Option(
        "stagingPort", "staging.port",
        Use.WRITE, to.integer(0, 65_535), 0,
        "Port on which the driver takes staged rows; 0 for any free one.",
    ),
    Option(
        "stagingBindAddress", "staging.bind_address",
        Use.WRITE, to.text, None,
        "Address that the driver listens on for staged rows; without it: SPARK_LOCAL_IP, else all.",
    ),
    Option(
        "stagingDirectory", "staging.directory",
        Use.WRITE, to.text, None,
        "Local directory of the driver for staged rows; without it: SPARK_LOCAL_DIRS, else the "
        "temporary directory.",
    ),
    Option(
        "stagingDiskSpace", "staging.disk_bytes_max",
        Use.WRITE, to.size, None,
        "Maximum size of the staged rows in stagingDirectory, such as 50g; without it: 90 % of the "
        "free space.",
    ),
    Option(
        "overwriteGroupOffsets", "write.overwrite_group_offsets",
        Use.WRITE, to.boolean, False,
        "Let a query begin a topic elsewhere than at its group's committed offsets, and overwrite "
        "them.",
    ),
    Option(
        "txnAppId", "write.txn_app_id",
        Use.WRITE_BATCH, to.text, None,
        "With txnVersion: makes a batch write idempotent, for each topic by itself, as with Delta "
        "Lake's options of these names.",
    ),
    Option(
        "txnVersion", "write.txn_version",
        Use.WRITE_BATCH, to.integer(0, 2**62), None,
        "Rises with each write of a txnAppId; at or below the committed one the write is skipped.",
    ),
    Option(
        "sourceOffsets", "write.source_offsets",
        Use.WRITE_BATCH, to.json_value(parse_offsets, '{"topic":{"0":23}}'), None,
        "Next offsets to read, as JSON, committed for kafka.group.id in the write's transaction.",
    ),
    Option(
        "checkpointLocation", "write.checkpoint",
        Use.WRITE, to.text, None,
        "Required as an option of writeStream, as Spark does not pass the session's configuration "
        "to a sink; of write inside foreachBatch only, set by txnlog_spark.foreach_batch.",
    ),
    Option(
        "queryName", "write.query_name",
        Use.WRITE_STREAM, str, None,
        "Name of the query, also in metrics. Spark's DataStreamWriter adds it: `.queryName(...)`.",
    ),
    *(
        Option(STORAGE_PREFIX + o.name, "write.storage", Use.WRITE, o.read, o.default, o.doc)
        for o in STORAGE_OPTIONS
    ),
    Option(
        "sinkName", "write.sink_name",
        Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: distinguishes several sinks of one query.",
    ),
    Option(
        "sinkRun", "write.sink_run", Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: the query's run; set by txnlog_spark.foreach_batch.",
    ),
    Option(
        "sinkGroup", "write.sink_group", Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: another sink of the query and its group.id, as NAME:GROUP.",
    ),
)  # fmt: skip
