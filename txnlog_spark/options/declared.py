"""Declarations of all options, each once: name, setting, uses, reader, default and text.

Names and meanings match Spark's Kafka connector, and options with the prefix `kafka.` match Kafka's
own configs. So a migration only changes `format("kafka")` to `format("txnlog")`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.host.security_options import SECURITY_OPTIONS
from txnlog_kafka.operations.producer import TRANSACTION_TIMEOUT_MS
from txnlog_spark.offsets import parse_offsets, parse_partitions
from txnlog_spark.options import option_types as to
from txnlog_spark.options.kafka_configs import PREFIX
from txnlog_spark.options.registry import REGISTRY_OPTIONS, REGISTRY_PREFIX, STRATEGIES
from txnlog_spark.storage.options import STORAGE_OPTIONS, STORAGE_PREFIX

MS_MAX = 2**31 - 1


class Use(enum.Flag):
    """Uses of the data source; each option declares the uses that it is valid for."""

    READ_STREAM = enum.auto()
    READ_BATCH = enum.auto()
    WRITE_STREAM = enum.auto()
    WRITE_BATCH = enum.auto()
    READ = READ_STREAM | READ_BATCH
    WRITE = WRITE_STREAM | WRITE_BATCH
    ALL = READ | WRITE


@dataclass(frozen=True, slots=True)
class Option:
    """Option. `read` makes its value from text, or raises ValueError with the allowed values."""

    name: str
    sets: str
    """Settings that get the option's value, such as `read.group_id write.group_id`."""
    use: Use
    read: Callable[[str], Any]
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()


def _format_options(side: str) -> tuple[Option, ...]:
    """Return the options for the encoding of the keys or the values (`side`)."""
    formats = "read.formats write.formats"
    return (
        Option(
            f"{side}.format", formats,
            Use.ALL, to.one_of("binary", "string", "json", "avro", "protobuf"), "binary",
            f"Encoding of a {side}: binary (unchanged), string, json, avro or protobuf.",
        ),
        Option(
            f"{side}.schema", formats,
            Use.ALL, to.text, None,
            f"Schema of a {side}: for json DDL or a JSON Schema, for avro the Avro schema, for "
            "protobuf the path of a descriptor set on the driver. Default: the registry's schema.",
        ),
        Option(
            f"{side}.message.name", formats,
            Use.ALL, to.text, None,
            "For protobuf: full name of the message. Default: the first message of the schema.",
        ),
        Option(
            f"{side}.subject", formats,
            Use.ALL, to.text, None,
            f"Subject of the schema in the registry. Default: by {side}.subject.name.strategy.",
        ),
        Option(
            f"{side}.subject.name.strategy", formats,
            Use.ALL, to.class_name(*STRATEGIES), STRATEGIES[0],
            f"Rule for the subject's name: {', '.join(STRATEGIES)}.",
        ),
        Option(
            f"{side}.fields", "read.formats",
            Use.READ, to.field_paths, None,
            "Fields to decode, such as `id,customer.name`, with backticks for dots. Default: all.",
        ),
        Option(
            f"{side}.mode", "read.formats",
            Use.READ, to.one_of("failfast", "permissive"), "failfast",
            f"FAILFAST: a malformed {side} is an error. PERMISSIVE: it becomes null, and the "
            f"columns {side}_bytes and {side}_error have its bytes and the reason.",
        ),
        Option(
            f"{side}.columns", "write.formats",
            Use.WRITE, to.topics, None,
            f"Columns that are the fields of the {side}, separated by commas, or * for all columns "
            f"without another meaning. Default: the column {side}.",
        ),
    )  # fmt: skip


_TIMESTAMPS = to.json_value(parse_offsets, '{"topic":{"0":1718000000000}}')

OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", "connection.bootstrap_servers",
        Use.ALL, to.text, None,
        "Addresses of brokers, host:port,host:port. Set either this option or `path`.",
    ),
    Option(
        "path", "connection.path",
        Use.ALL, to.local_directory, None,
        "Directory of an embedded broker, a path or a `file:` URI. A read or write starts it, a "
        "write creates the directory. `.load(path)`, `.start(path)` and `.save(path)` set it.",
    ),
    Option(
        "kafka.client.id", "connection.client_id",
        Use.ALL, to.text, "txnlog",
        "Name in the brokers' logs and quotas.",
    ),
    Option(
        "kafka.request.timeout.ms", "session.request_timeout_ms",
        Use.ALL, to.integer(1), 30_000,
        "Timeout of one request, in ms.",
    ),
    Option(
        "kafka.default.api.timeout.ms", "session.operation_timeout_ms",
        Use.ALL, to.integer(1), 60_000,
        "Timeout of an operation including its retries, in ms.",
    ),
    Option(
        "kafka.retry.backoff.ms", "session.retry_backoff_ms",
        Use.ALL, to.integer(0, MS_MAX), 20,
        "Pause before the first retry, in ms. The pause doubles with each retry.",
    ),
    Option(
        "kafka.retry.backoff.max.ms", "session.retry_backoff_max_ms",
        Use.ALL, to.integer(0, MS_MAX), 1_000,
        "Longest pause before a retry, in ms.",
    ),
    Option(
        "kafka.socket.connection.setup.timeout.ms", "connection.connect_timeout_ms",
        Use.ALL, to.integer(1, MS_MAX), 10_000,
        "Timeout of connecting to a broker, in ms.",
    ),
    Option(
        "kafka.connections.max.idle.ms", "connection.idle_ms_max",
        Use.ALL, to.integer(-1, MS_MAX), 540_000,
        "An idle connection is closed after this time, in ms. -1 keeps it open.",
    ),
    Option(
        "kafka.metadata.max.age.ms", "session.read_replica_ms read.metadata_max_age_ms",
        Use.ALL, to.integer(0, MS_MAX), 300_000,
        "Interval in ms at which subscribePattern looks for new topics. If a partition is read "
        "from a follower (kafka.client.rack), its leader is asked again after this time.",
    ),
    Option(
        "kafka.metadata.cluster.check.enable", "session.names_broker",
        Use.ALL, to.boolean, True,
        "Send the expected cluster and broker id to brokers of Kafka 4.4, so that another broker "
        "at the address refuses. Set false if a proxy changes the ids.",
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
        "Register the schema of a write. If false, the schema must already be registered.",
    ),
    Option(
        "use.latest.version", "write.formats",
        Use.WRITE, to.boolean, False,
        "Write with the latest schema of the subject.",
    ),
    Option(
        "recursiveFieldMaxDepth", "read.formats",
        Use.READ, to.integer(-1, 15), -1,
        "Depth to which an Avro record may contain itself. Below 1: such schemas are refused.",
    ),
    Option(
        "timeZone", "read.formats write.formats",
        Use.ALL, to.text, None,
        "Time zone of JSON timestamps that have no zone. Default: spark.sql.session.timeZone.",
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
        "Start of a new query: latest (default of a stream), earliest (default of a batch), "
        "committed (the group's committed offsets, which must exist), committedOrEarliest or "
        'committedOrLatest (the same for a first start), or JSON such as `{"topic":{"0":23}}` with '
        "-2 as earliest and -1 as latest.",
    ),
    Option(
        "startingOffsetsByTimestamp", "read.starting",
        Use.READ, _TIMESTAMPS, None,
        "Start at the first record of this time or later: ms for each partition, as JSON.",
    ),
    Option(
        "startingTimestamp", "read.starting",
        Use.READ, to.integer(0), None,
        "Start at the first record of this time or later: ms, for all partitions.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "read.starting",
        Use.READ, to.one_of("error", "latest"), "error",
        "Reaction if all records are older than the starting timestamp: error or latest.",
    ),
    Option(
        "endingOffsets", "read.ending",
        Use.READ_BATCH, to.offsets_or("latest"), "latest",
        "End of a batch: latest, or JSON as for startingOffsets.",
    ),
    Option(
        "endingOffsetsByTimestamp", "read.ending",
        Use.READ_BATCH, _TIMESTAMPS, None,
        "End before the first record of this time or later: ms for each partition, as JSON.",
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
        "streaming query was deleted and created again. If false, log the loss and continue.",
    ),
    Option(
        "includeHeaders", "read.include_headers",
        Use.READ, to.boolean, False,
        "Add the column `headers`.",
    ),
    Option(
        "minPartitions", "read.min_partitions",
        Use.READ, to.integer(1), None,
        "Minimum number of tasks of a read.",
    ),
    Option(
        "maxRecordsPerPartition", "read.max_records_per_partition",
        Use.READ, to.integer(1), None,
        "Maximum number of offsets of a task.",
    ),
    Option(
        "maxOffsetsPerTrigger", "read.max_offsets_per_trigger",
        Use.READ_STREAM, to.integer(1), None,
        "Maximum number of offsets of a micro-batch.",
    ),
    Option(
        "minOffsetsPerTrigger", "read.min_offsets_per_trigger",
        Use.READ_STREAM, to.integer(1), None,
        "A micro-batch waits until this many offsets can be read. A run's first batch does not.",
    ),
    Option(
        "maxTriggerDelay", "read.trigger_delay_ms_max",
        Use.READ_STREAM, to.duration_ms, 900_000,
        "Longest wait for minOffsetsPerTrigger, such as 30s or 15m; a number without a unit is ms.",
    ),
    Option(
        "fetchOffset.numRetries", "read.offset_attempts",
        Use.READ, to.integer(1, MS_MAX), 1,
        "Number of times that the source asks for partitions and offsets before the query fails. "
        "Each try may take kafka.default.api.timeout.ms.",
    ),
    Option(
        "fetchOffset.retryIntervalMs", "read.offset_retry_ms",
        Use.READ, to.integer(0, MS_MAX), 10,
        "Pause between two tries of fetchOffset.numRetries, in ms.",
    ),
    Option(
        "partition.metadata.cache.ttl.ms", "read.partition_cache_ms",
        Use.READ_STREAM, to.positive_or_off, -1,
        "Time in ms for which a query keeps its list of partitions. After it, the query finds new "
        "partitions, and new topics of a pattern. -1: the query asks for partitions once a second, "
        "and for topics of a pattern once in kafka.metadata.max.age.ms.",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs", "read.poll_timeout_ms",
        Use.READ, to.integer(1, MS_MAX), None,
        "Longest wait of a task for records before it fails, in ms. Default: "
        "kafka.default.api.timeout.ms.",
    ),
    Option(
        "filterPushdown", "read.filter_pushdown",
        Use.READ_BATCH, to.boolean, False,
        "Skip records that filters on topic, partition, offset and timestamp exclude. Also set "
        "spark.sql.python.filterPushdown.enabled=true: Spark refuses the read without it.",
    ),
    Option(
        "kafka.isolation.level", "read.isolation_level",
        Use.READ, to.one_of("read_committed", "read_uncommitted"), "read_committed",
        "read_committed skips the records of open and aborted transactions; read_uncommitted "
        "includes them.",
    ),
    Option(
        "kafka.fetch.max.bytes", "read.fetch_bytes_max",
        Use.READ, to.integer(1), 50 * 2**20,
        "Maximum size of a Fetch response, in bytes.",
    ),
    Option(
        "kafka.max.partition.fetch.bytes", "read.partition_fetch_bytes_max",
        Use.READ, to.integer(1), 8 * 2**20,
        "Maximum size of one partition's records in a Fetch response, in bytes.",
    ),
    # how to write
    Option(
        "topic", "write.topic",
        Use.WRITE, to.text, None,
        "Topic of all rows; overrides the column `topic`. Without it, every row needs that column.",
    ),
    Option(
        "timestampColumn", "write.timestamp_column",
        Use.WRITE, to.text, None,
        "Column with the timestamps of the records. Default: the time of writing.",
    ),
    Option(
        "kafka.transactional.id", "write.transactional_id",
        Use.WRITE, to.text, None,
        "Transactional id of the query's one producer. Default: made from the group id, else from "
        "the query id. Use the same id for every start. A sink's name is appended to it.",
        ("transactional.id",),
    ),
    Option(
        "kafka.transaction.timeout.ms", "write.transaction_timeout_ms",
        Use.WRITE, to.integer(1, MS_MAX), TRANSACTION_TIMEOUT_MS,
        "The broker aborts a transaction that is open for longer than this, in ms.",
    ),
    Option(
        "kafka.compression.type", "write.compression",
        Use.WRITE, to.one_of("none", "gzip", "snappy", "lz4", "zstd"), "none",
        "Compression of the record batches: none, gzip, snappy, lz4 or zstd.",
    ),
    Option(
        "kafka.max.request.size", "write.record_batch_bytes_max",
        Use.WRITE, to.integer(1024), 2**20,
        "Largest record batch, in bytes. Set it to at most the topic's max.message.bytes; "
        "the driver has to divide larger record batches, which takes time.",
    ),
    Option(
        "kafka.acks", "",
        Use.WRITE, to.one_of("all", "-1"), "all",
        "Must be all: exactly-once needs it.",
    ),
    Option(
        "kafka.enable.idempotence", "",
        Use.WRITE, to.one_of("true"), "true",
        "Must be true: exactly-once needs it.",
    ),
    Option(
        "stagingLocation", "write.staging_location",
        Use.WRITE, to.text, None,
        "Directory or object store for staged rows that driver and executors share. Without it, "
        "the staging server stores staged rows on the driver's machine.",
    ),
    Option(
        "stagingHost", "staging.host",
        Use.WRITE, to.text, None,
        "Host name at which executors reach the driver. Default: spark.driver.host.",
    ),
    Option(
        "stagingPort", "staging.port",
        Use.WRITE, to.integer(0, 65_535), 0,
        "Port on which the driver receives staged rows; 0 for any free port.",
    ),
    Option(
        "stagingBindAddress", "staging.bind_address",
        Use.WRITE, to.text, None,
        "Address that the driver listens on for staged rows. Default: SPARK_LOCAL_IP, else all.",
    ),
    Option(
        "stagingDirectory", "staging.directory",
        Use.WRITE, to.text, None,
        "Local directory of the driver for staged rows. Default: SPARK_LOCAL_DIRS, else the "
        "temporary directory.",
    ),
    Option(
        "stagingDiskSpace", "staging.disk_bytes_max",
        Use.WRITE, to.size, None,
        "Maximum size of the staged rows in stagingDirectory, such as 50g. Default: 90 % of the "
        "free space.",
    ),
    Option(
        "overwriteGroupOffsets", "write.overwrite_group_offsets",
        Use.WRITE, to.boolean, False,
        "Let a query start a topic at other offsets than its group has committed, and overwrite "
        "the committed offsets. Rows between the two positions are then written twice or left out.",
    ),
    Option(
        "txnAppId", "write.txn_app_id",
        Use.WRITE_BATCH, to.text, None,
        "With txnVersion: makes a batch write idempotent, separately for each topic, like Delta "
        "Lake's options of these names.",
    ),
    Option(
        "txnVersion", "write.txn_version",
        Use.WRITE_BATCH, to.integer(0, 2**62), None,
        "Version of a write; raise it each time. Versions up to the committed one are skipped.",
    ),
    Option(
        "sourceOffsets", "write.source_offsets",
        Use.WRITE_BATCH, to.json_value(parse_offsets, '{"topic":{"0":23}}'), None,
        "Next offsets to read, as JSON, committed for kafka.group.id in the write's transaction.",
    ),
    Option(
        "checkpointLocation", "write.checkpoint",
        Use.WRITE, to.text, None,
        "Required for writeStream, as an option: Spark does not pass the session's configuration "
        "to a sink. For write, only inside foreachBatch, where txnlog_spark.foreach_batch sets it.",
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
        "Inside foreachBatch: name of the sink, if one query has several sinks.",
    ),
    Option(
        "sinkRun", "write.sink_run", Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: run of the query. txnlog_spark.foreach_batch sets it.",
    ),
    Option(
        "sinkGroup", "write.sink_group", Use.WRITE_BATCH, to.text, None,
        "Inside foreachBatch: another sink of the query and its group.id, as NAME:GROUP.",
    ),
)  # fmt: skip
