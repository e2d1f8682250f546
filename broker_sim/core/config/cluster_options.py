"""The options of a broker that belongs to a cluster; most are Kafka's.

What has an effect with `registry.connect` only says so: a broker that is alone has no registry, no
peers, and one replica of each partition, whatever these say.
"""

from __future__ import annotations

from broker_sim.core.config.key import flag, int32, int64, text

INT16_MAX = 2**15 - 1
_IN_CLUSTER = "With registry.connect only."


_SELECTORS = "org.apache.kafka.common.replica."
LEADER_SELECTOR = f"{_SELECTORS}LeaderSelector"
RACK_AWARE_SELECTOR = f"{_SELECTORS}RackAwareReplicaSelector"


CLUSTER = (
    text(
        "registry.connect",
        "",
        "host:port of the cluster's registry; empty: this broker is alone. Not in Kafka, whose "
        "zookeeper.connect was like it.",
    ),
    int32(
        "registry.session.timeout.ms",
        18_000,
        "A broker from which the registry hears nothing for so long is taken for dead. Not in "
        "Kafka, whose zookeeper.session.timeout.ms was like it.",
        1,
    ),
    int32(
        "registry.heartbeat.interval.ms",
        2_000,
        "How often the registry hears of a broker that asks nothing else. Not in Kafka, whose "
        "broker.heartbeat.interval.ms is like it.",
        1,
    ),
    text(
        "broker.rack", "", f"The rack of this broker: replicas are spread over racks. {_IN_CLUSTER}"
    ),
    text(
        "replica.selector.class",
        "",
        f"{RACK_AWARE_SELECTOR}: a consumer that names its rack is sent to a replica there. "
        f"{LEADER_SELECTOR}, or empty: all read from the leader. {_IN_CLUSTER}",
        ("", LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    ),
    flag(
        "controlled.shutdown.enable",
        True,
        f"Hand over what this broker leads before it stops. {_IN_CLUSTER}",
    ),
    flag(
        "auto.leader.rebalance.enable",
        True,
        f"Elect preferred leaders again when they are back. {_IN_CLUSTER}",
    ),
    int64(
        "leader.imbalance.check.interval.seconds",
        300,
        f"How often the controller looks for that. {_IN_CLUSTER}",
        1,
    ),
    int64(
        "metadata.log.max.record.bytes.between.snapshots",
        20 << 20,
        f"Bytes of the metadata log after which it is put together in a snapshot. {_IN_CLUSTER}",
        1,
    ),
    int64(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        f"How often that is done when less was appended; 0: never. {_IN_CLUSTER}",
        0,
    ),
    int32(
        "offsets.topic.replication.factor",
        3,
        "Replicas of a partition of __consumer_offsets; a broker that is alone has one.",
        1,
        INT16_MAX,
    ),
    int32(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of a partition of __transaction_state; a broker that is alone has one.",
        1,
        INT16_MAX,
    ),
    int32(
        "transaction.state.log.min.isr",
        2,
        "The min.insync.replicas of __transaction_state; of one replica one is enough.",
        1,
    ),
    int32(
        "replica.socket.timeout.ms",
        30_000,
        "How long another broker, or the registry, may take for an answer.",
        1,
    ),
    int64(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long connecting to another broker, or the registry, may take.",
        1,
    ),
    int64(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        f"How often the high watermarks are written. {_IN_CLUSTER}",
        1,
    ),
)
