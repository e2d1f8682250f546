"""Every option, once, as data: Kafka's names, defaults and ranges, and what it means here.

Rules for this file: parsing, validation, documentation (`DescribeConfigs`) and the topic-level
defaults come from the tables. Options that Kafka does not have are marked in their text, and so
are those that are taken and have no effect with one broker and one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker_sim.core.config.cluster_options import CLUSTER
from broker_sim.core.config.group_options import CONSUMER_GROUPS
from broker_sim.core.config.key import (
    DOUBLE_MAX,
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    ConfigKind,
    flag,
    int32,
    int64,
    text,
    texts,
)
from broker_sim.core.config.security import SECURITY

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
SEGMENT_BYTES_MIN = 1 << 20
DEDUPE_BYTES_MIN = (1 << 20) + 1
ARRAY_BYTES_MAX = INT32_MAX - 8
"""Size of the largest array that a JVM is sure to allocate."""
DAY_MS = 24 * 60 * 60 * 1000
HOUR_MS = 60 * 60 * 1000


def _double(name: str, default: float, doc: str, low: float, high: float) -> ConfigKey:
    return ConfigKey(name, ConfigKind.DOUBLE, default, doc, low, high)


def _level(name: str, default: int, low: int, high: int, pattern: str = "") -> ConfigKey:
    doc = "Its topic default; no effect here: batches stay as the producer made them."
    return ConfigKey(name, ConfigKind.INT, default, doc, low, high, pattern=pattern)


_UNTHROTTLED = "No effect here: replicas are not throttled."
_REPLICATION_QUOTAS = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Options that `kafka-reassign-partitions --throttle` sets, in bytes per second."""

_NETWORK = (
    int32("node.id", 0, "This broker's id in the cluster.", 0),
    text(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "Where to accept connections: NAME://host:port, separated by commas. Port 0 takes a free "
        "one; listener.security.protocol.map says what a name stands for.",
    ),
    text(
        "advertised.listeners",
        "",
        "The addresses that clients connect to, NAME://host:port; empty: the listeners.",
    ),
    int32("socket.request.max.bytes", 104_857_600, "Maximum size of a request.", 1),
    int64(
        "queued.max.request.bytes",
        536_870_912,
        "Bytes of large requests being received, over all connections; -1: unlimited.",
        -1,
    ),
    int32("max.connections", INT32_MAX, "Connections at one time; more are closed at once.", 1),
    int64("connections.max.idle.ms", 600_000, "Idle connections are closed after this; -1 never."),
    int32("max.connections.per.ip", INT32_MAX, "Connections of one address at one time.", 1),
    int32("max.connection.creation.rate", INT32_MAX, "No effect here.", 1),
    *(
        int32(name, default, "No effect here: one thread does all.", 1)
        for name, default in (
            ("num.network.threads", 3),
            ("num.io.threads", 8),
            ("background.threads", 10),
            ("num.recovery.threads.per.data.dir", 2),
            ("num.replica.fetchers", 1),
        )
    ),
    int64("replica.lag.time.max.ms", 30_000, "A replica that lags for so long leaves the ISR."),
    int32("replica.fetch.backoff.ms", 1000, "How long a replica waits after a failed fetch.", 0),
    int32("replica.fetch.wait.max.ms", 500, "How long a leader may wait for bytes to answer with."),
    int32("replica.fetch.min.bytes", 1, "Bytes that a leader waits for before it answers."),
    int32("replica.fetch.max.bytes", 1 << 20, "Bytes of a partition in an answer to a replica.", 0),
    int32("replica.fetch.response.max.bytes", 10 << 20, "Bytes of such an answer.", 0),
    *(int64(name, INT64_MAX, _UNTHROTTLED, 0) for name in _REPLICATION_QUOTAS),
    int32("quota.window.num", 11, "Windows over which the rate of a client is measured.", 1),
    int32("quota.window.size.seconds", 1, "Length of such a window.", 1),
    int32("max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions at one time.", 0),
    int32("fetch.max.bytes", 57_671_680, "Maximum size of the records in a Fetch response.", 1024),
)

_TOPICS = (
    flag("auto.create.topics.enable", True, "Create a topic when a client asks for its metadata."),
    flag("delete.topic.enable", True, "Whether DeleteTopics is allowed."),
    int32("num.partitions", 1, "Default number of partitions of a topic.", 1),
    int32("default.replication.factor", 1, "Default replication factor of a topic.", 1),
    int32("min.insync.replicas", 1, "Topic default of min.insync.replicas.", 1),
    int32("message.max.bytes", 1_048_588, "Topic default of max.message.bytes.", 0),
    int32(
        "max.decompressed.message.bytes",
        ARRAY_BYTES_MAX,
        "Its topic default; no effect here: records stay in their batches.",
        1,
        ARRAY_BYTES_MAX,
    ),
    text(
        "log.message.timestamp.type",
        "CreateTime",
        "Topic default of message.timestamp.type.",
        ("CreateTime", "LogAppendTime"),
    ),
    texts(
        "log.cleanup.policy", "delete", "Topic default of cleanup.policy.", ("delete", "compact")
    ),
    int32("log.segment.bytes", 1_073_741_824, "Topic default of segment.bytes.", SEGMENT_BYTES_MIN),
    int64("log.roll.ms", 604_800_000, "Topic default of segment.ms.", 1),
    int64("log.roll.jitter.ms", 0, "Topic default of segment.jitter.ms.", 0),
    int32("log.index.interval.bytes", 4096, "Topic default of index.interval.bytes.", 0),
    int32("log.index.size.max.bytes", 10_485_760, "Topic default of segment.index.bytes.", 4),
    ConfigKey(
        "log.retention.ms",
        ConfigKind.LONG,
        604_800_000,
        "Topic default of retention.ms; negative keeps all.",
        pattern="(?!0$).*",
    ),
    int64("log.retention.bytes", -1, "Topic default of retention.bytes; negative keeps all."),
    int64("log.retention.check.interval.ms", 300_000, "How often retention is applied.", 1),
    int64(
        "log.message.timestamp.before.max.ms",
        INT64_MAX,
        "Topic default of message.timestamp.before.max.ms.",
        0,
    ),
    int64(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "Topic default of message.timestamp.after.max.ms.",
        0,
    ),
    text(
        "compression.type",
        "producer",
        "Topic default of compression.type. Batches stay as the producer made them.",
        COMPRESSION_TYPES,
    ),
    _level("compression.gzip.level", -1, -1, 9, "-1|[1-9]"),
    _level("compression.lz4.level", 9, 1, 17),
    _level("compression.zstd.level", 3, -131_072, 22),
    int64("log.flush.interval.messages", INT64_MAX, "Topic default of flush.messages.", 1),
    int64(
        "log.flush.interval.ms",
        INT64_MAX,
        "Topic default of flush.ms; the default means log.flush.scheduler.interval.ms.",
        0,
    ),
    int64(
        "log.flush.scheduler.interval.ms",
        INT64_MAX,
        "How often logs are looked through for a flush.ms that has passed; the default is never.",
        1,
    ),
    int32(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often the recovery points are moved and written; a crash has no more to read again.",
        1,
    ),
    int64("log.segment.delete.delay.ms", 60_000, "Topic default of file.delete.delay.ms.", 0),
    flag("log.preallocate", False, "Topic default of preallocate."),
    flag("unclean.leader.election.enable", False, "Its topic default."),
    int64("log.local.retention.ms", -2, "Topic default of local.retention.ms.", -2),
    int64("log.local.retention.bytes", -2, "Topic default of local.retention.bytes.", -2),
    int64("log.remote.copy.lag.ms", 0, "Topic default of remote.copy.lag.ms.", -1),
    int64("log.remote.copy.lag.bytes", -1, "Topic default of remote.copy.lag.bytes.", -1),
)

_CLEANER = (
    int64(
        "log.dir.reserved.bytes",
        67_108_864,
        "Writes are refused while less than this is free. Kafka has no such option.",
        0,
    ),
    flag("log.cleaner.enable", True, "Whether topics with cleanup.policy=compact are compacted."),
    int64("log.cleaner.backoff.ms", 15_000, "How often logs to compact are looked for.", 0),
    _double(
        "log.cleaner.min.cleanable.ratio", 0.5, "Topic default of min.cleanable.dirty.ratio.", 0, 1
    ),
    int64("log.cleaner.delete.retention.ms", DAY_MS, "Topic default of delete.retention.ms.", 0),
    int64("log.cleaner.min.compaction.lag.ms", 0, "Topic default of min.compaction.lag.ms.", 0),
    int64(
        "log.cleaner.max.compaction.lag.ms", INT64_MAX, "Topic default of max.compaction.lag.ms.", 1
    ),
    int32("log.cleaner.threads", 1, "No effect here: one thread does all.", 1),
    int64(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "Memory for the keys of one pass.",
        DEDUPE_BYTES_MIN,
    ),
    _double("log.cleaner.io.buffer.load.factor", 0.9, "No effect here.", -DOUBLE_MAX, DOUBLE_MAX),
    int32(
        "log.cleaner.io.buffer.size",
        524_288,
        "Log bytes that the cleaner reads at a time; here at most 65536.",
        0,
    ),
    _double(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE_MAX,
        "Log bytes that the cleaner reads in a second; no limit unless above 0.",
        -DOUBLE_MAX,
        DOUBLE_MAX,
    ),
)

_PRODUCERS = (
    int32(
        "producer.id.expiration.ms", 86_400_000, "Idle producer ids are forgotten after this.", 1
    ),
    int32("producer.id.expiration.check.interval.ms", 600_000, "How often they are looked for.", 1),
    flag(
        "transaction.fence.commit.after.abort",
        False,
        "Answer the commit of a transaction that was aborted meanwhile with PRODUCER_FENCED, as "
        "Kafka after 4.4 will (KAFKA-20785), and not with INVALID_TXN_STATE, which is fatal to "
        "clients (not in Kafka, which has one answer a release).",
    ),
    flag(
        "flush.on.commit",
        True,
        "fsync at each step of a transaction's commit, and each offset commit (not in Kafka, whose "
        "durability is replication): a committed transaction survives loss of power.",
    ),
)

_TRANSACTIONS = (
    int32(
        "transaction.version",
        2,
        "Finalized level of the feature transaction.version (KIP-890). In Kafka a feature, not a "
        "configuration.",
        0,
        2,
    ),
    int32("transaction.max.timeout.ms", 900_000, "Maximum of transaction.timeout.ms.", 1),
    int32("transactional.id.expiration.ms", 604_800_000, "Idle transactional ids expire.", 1),
    int32("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", 1),
    int32("transaction.state.log.segment.bytes", 104_857_600, "Its segment.bytes.", 1024),
    int32(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often transactions over their timeout are looked for.",
        1,
    ),
    int32(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often expired transactional ids are looked for.",
        1,
    ),
    flag(
        "transaction.partition.verification.enable",
        True,
        "Check with the coordinator that a partition is in the transaction (KIP-890 part 1).",
    ),
)

_GROUPS = (
    int32(
        "group.version",
        1,
        "Finalized level of the feature group.version; 0 has no consumer groups (KIP-848). In "
        "Kafka a feature, not a configuration.",
        0,
        1,
    ),
    int32("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", 1),
    int32("offsets.topic.segment.bytes", 104_857_600, "Its segment.bytes.", 1024),
    int32("offsets.retention.minutes", 10_080, "Offsets of empty groups expire after this.", 1),
    int64("offsets.retention.check.interval.ms", 600_000, "How often they are looked for.", 1),
    int32(
        "offset.metadata.max.bytes", 4096, "Maximum size of the metadata of an offset commit.", 0
    ),
    int32("group.initial.rebalance.delay.ms", 3000, "Wait for more members of an empty group.", 0),
    int32("group.min.session.timeout.ms", 6000, "Minimum of session.timeout.ms.", 1),
    int32("group.max.session.timeout.ms", 1_800_000, "Maximum of session.timeout.ms.", 1),
    int32("group.max.size", INT32_MAX, "Maximum number of members of a group.", 1),
    *CONSUMER_GROUPS,
)

BROKER_CONFIG: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        *_NETWORK,
        *SECURITY,
        *CLUSTER,
        *_TOPICS,
        *_CLEANER,
        *_PRODUCERS,
        *_TRANSACTIONS,
        *_GROUPS,
    )
}

ALIASES: dict[str, tuple[ConfigKey, int]] = {
    "log.retention.minutes": (BROKER_CONFIG["log.retention.ms"], 60_000),
    "log.retention.hours": (BROKER_CONFIG["log.retention.ms"], HOUR_MS),
    "log.roll.hours": (BROKER_CONFIG["log.roll.ms"], HOUR_MS),
    "log.roll.jitter.hours": (BROKER_CONFIG["log.roll.jitter.ms"], HOUR_MS),
}
"""Other names of an option at start, and the ms of their unit; the first of them that is given."""

DEFAULT_OF_COARSER_UNIT = frozenset(
    {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"}
)
"""Null in Kafka until they are set: `log.retention.hours` and so on hold the default."""


@dataclass(frozen=True, slots=True)
class TopicConfigKey:
    """A topic option and the broker option that is its default, if there is one."""

    key: ConfigKey
    synonym: str | None
    internal: bool = False
    """Kafka's own tests use it; not listed unless it was set."""


def _topic(name: str, synonym: str, doc: str) -> TopicConfigKey:
    base = BROKER_CONFIG[synonym]
    return TopicConfigKey(replace(base, name=name, doc=doc), synonym)


def _throttled(name: str) -> ConfigKey:
    return ConfigKey(name, ConfigKind.LIST, "", _UNTHROTTLED, pattern=_REPLICAS)


def _topic_only(
    key: ConfigKey, *, synonym: str | None = None, internal: bool = False
) -> TopicConfigKey:
    """A topic option that the broker has not, or has with another range."""
    return TopicConfigKey(key, synonym, internal)


_NO_TIER = "No effect here: there is no tiered storage."
_REPLICAS = r"\*|[0-9]+:[0-9]+(\s*,\s*[0-9]+:[0-9]+)*|"
_AS_PRODUCED = "No effect here: batches stay as the producer made them."

TOPIC_CONFIG: dict[str, TopicConfigKey] = {
    topic.key.name: topic
    for topic in (
        _topic("cleanup.policy", "log.cleanup.policy", "delete or compact old segments, or both."),
        _topic("compression.gzip.level", "compression.gzip.level", _AS_PRODUCED),
        _topic("compression.lz4.level", "compression.lz4.level", _AS_PRODUCED),
        _topic("compression.type", "compression.type", _AS_PRODUCED),
        _topic("compression.zstd.level", "compression.zstd.level", _AS_PRODUCED),
        _topic(
            "delete.retention.ms",
            "log.cleaner.delete.retention.ms",
            "How long compaction keeps tombstones and transaction markers.",
        ),
        _topic_only(
            flag(
                "errors.deadletterqueue.group.enable",
                False,
                "No effect here: there are no share groups, which would write to the topic.",
            )
        ),
        _topic(
            "file.delete.delay.ms", "log.segment.delete.delay.ms", "How long removed files stay."
        ),
        _topic("flush.messages", "log.flush.interval.messages", "fsync after so many records."),
        _topic("flush.ms", "log.flush.interval.ms", "fsync after this time."),
        _topic_only(_throttled("follower.replication.throttled.replicas")),
        _topic("index.interval.bytes", "log.index.interval.bytes", "Bytes between index entries."),
        _topic_only(_throttled("leader.replication.throttled.replicas")),
        _topic("local.retention.bytes", "log.local.retention.bytes", _NO_TIER),
        _topic("local.retention.ms", "log.local.retention.ms", _NO_TIER),
        _topic(
            "max.compaction.lag.ms",
            "log.cleaner.max.compaction.lag.ms",
            "The longest time that a record stays uncompacted.",
        ),
        _topic(
            "max.decompressed.message.bytes",
            "max.decompressed.message.bytes",
            "No effect here: records stay in their batches.",
        ),
        _topic("max.message.bytes", "message.max.bytes", "Maximum size of a record batch."),
        _topic(
            "message.timestamp.after.max.ms",
            "log.message.timestamp.after.max.ms",
            "How far a producer's timestamp may lie after the broker's clock.",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            "log.message.timestamp.before.max.ms",
            "How far a producer's timestamp may lie before the broker's clock.",
        ),
        _topic(
            "message.timestamp.type",
            "log.message.timestamp.type",
            "CreateTime keeps the producer's timestamps, LogAppendTime sets the broker's.",
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            "log.cleaner.min.cleanable.ratio",
            "The part of a log that must be new since the last compaction.",
        ),
        _topic(
            "min.compaction.lag.ms",
            "log.cleaner.min.compaction.lag.ms",
            "How long a record stays uncompacted at least.",
        ),
        _topic("min.insync.replicas", "min.insync.replicas", "Replicas an acks=all write needs."),
        _topic("preallocate", "log.preallocate", "No effect here: files grow as they are written."),
        _topic("remote.copy.lag.bytes", "log.remote.copy.lag.bytes", _NO_TIER),
        _topic("remote.copy.lag.ms", "log.remote.copy.lag.ms", _NO_TIER),
        _topic_only(flag("remote.log.copy.disable", False, _NO_TIER)),
        _topic_only(flag("remote.log.delete.on.disable", False, _NO_TIER)),
        _topic_only(flag("remote.storage.enable", False, _NO_TIER)),
        _topic("retention.bytes", "log.retention.bytes", "Old segments over this are removed."),
        _topic_only(
            int64(
                "retention.ms", 604_800_000, "Segments older than this are removed; -1: none.", -1
            ),
            synonym="log.retention.ms",
        ),
        _topic("segment.bytes", "log.segment.bytes", "A segment is closed at this size."),
        _topic("segment.index.bytes", "log.index.size.max.bytes", "An index holds at most this."),
        _topic("segment.jitter.ms", "log.roll.jitter.ms", "No effect here: rolls need no spread."),
        _topic("segment.ms", "log.roll.ms", "A segment is closed at this age."),
        _topic(
            "unclean.leader.election.enable",
            "unclean.leader.election.enable",
            "Whether a replica that is not in sync may lead when no other is up: records are lost.",
        ),
        _topic_only(
            int32("internal.segment.bytes", -1, "segment.bytes without its minimum; for tests.", 1),
            internal=True,
        ),
    )
}

DYNAMIC_CONFIGS: frozenset[str] = frozenset(
    {topic.synonym for topic in TOPIC_CONFIG.values() if topic.synonym is not None}
    | {*_REPLICATION_QUOTAS}
    | {
        "background.threads",
        "group.consumer.assignment.interval.ms",
        "group.consumer.assignor.offload.enable",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    }
)
"""Options that may change while the broker runs.

They are Kafka's `DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS` and `QuotaConfig.brokerQuotaConfigs`.
"""
