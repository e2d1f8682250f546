"""Starting and stopping a broker: what is read, repaired, made, in which order.

At start: the clean-shutdown marker is taken away, metadata is replayed, logs are recovered, then
the coordinators are loaded, groups first, because finishing a prepared transaction writes markers
that the group coordinator must hear of. Last, when the machine itself went down, transactions that
were open are aborted: Produce is acknowledged before it is flushed (as in Kafka), so records of an
open transaction may be gone, and no later EndTxn may commit what is left of it.
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING

from broker_sim.core.config import BrokerConfig, ConfigError, DataDirectoryError, parse_properties
from broker_sim.core.controller import ClusterImage, MetadataLog
from broker_sim.core.controller.acl_admin import AclAdmin
from broker_sim.core.controller.configs import ConfigAdmin
from broker_sim.core.controller.image import broker_start_record, cluster_record
from broker_sim.core.controller.producer_ids import ProducerIdAllocator
from broker_sim.core.controller.scram import ScramAdmin
from broker_sim.core.controller.topics import TopicAdmin
from broker_sim.core.coordinator.partition_writer import MarkerSender, PartitionWriter
from broker_sim.core.effects import Delete, Effects, Storage, WriteFile
from broker_sim.core.endpoint import read_listeners
from broker_sim.core.free_space import FreeSpace
from broker_sim.core.group import GroupConfig, GroupCoordinator
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.parts import BrokerParts
from broker_sim.core.peers import Peers
from broker_sim.core.publisher import Publisher, apply_dynamic
from broker_sim.core.replica.delayed_fetch import DelayedFetches
from broker_sim.core.replica.log_cleaner import LogCleaner
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.security.authorizer import Authorizer
from broker_sim.core.security.logins import Logins
from broker_sim.core.transaction import TransactionConfig, TransactionCoordinator
from txnlog_spark.wire.records import CorruptBatch
from txnlog_spark.wire.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from random import Random

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
META_PROPERTIES_VERSION = "1"
MACHINE_BOOT_FILE = "machine.boot"
"""The machine's boot at the last start; not a file of Kafka, which leaves this to replication."""
_SMALL_FILE_BYTES = 65536


def start(
    config: BrokerConfig,
    storage: Storage,
    rng: Random,
    effects: Effects,
    *,
    machine_boot_id: str = "",
    codecs: Codecs = NO_CODECS,
) -> BrokerParts:
    """A broker with everything recovered. Raises DataDirectoryError when it is not its own."""
    properties = _read_properties(config, storage)
    clean = storage.size_bytes(CLEAN_SHUTDOWN_FILE) is not None
    if clean:
        effects.storage.append(Delete(CLEAN_SHUTDOWN_FILE))
    logs = LogManager(config, storage, codecs)
    metadata = MetadataLog(logs.open_metadata_log(clean_shutdown=clean, effects=effects))
    try:
        metadata.load()
    except CorruptBatch as error:
        raise DataDirectoryError(f"the metadata log is damaged: {error}") from error
    image = metadata.image
    _check_cluster(properties, image)
    unusable = apply_dynamic(config, image)
    if unusable:
        effects.trace("unusable-configs", names=unusable)
    if not image.cluster_id:
        metadata.commit([cluster_record(_random_id(rng))], effects)
    if not properties:
        effects.storage.append(WriteFile(META_PROPERTIES_FILE, _properties(config, image)))
    metadata.commit([broker_start_record(image.broker_epoch + 1)], effects)
    logs.open_all(image, clean_shutdown=clean, effects=effects)
    if not clean and config.boolean("flush.on.commit"):
        # What a killed process left unflushed was recovered: coordinators answer from it, without
        # another append, so it must be durable before they do.
        internal = (TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC)
        logs.flush([log for (topic, _), log in logs.items() if topic in internal], effects)
    parts = _wired(config, rng, metadata, logs, codecs)
    publisher = Publisher(config, image, logs, parts.replicas, parts.transactions, parts.groups)
    metadata.publish = publisher.publish
    for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        publisher.load(topic, effects)
    parts.groups.start(effects)
    lost = not clean and _may_have_lost_unflushed(storage, machine_boot_id)
    parts.transactions.start(effects, abort_open=lost and config.boolean("flush.on.commit"))
    # Only now: a crash before this must find the old boot, and abort again.
    effects.storage.append(WriteFile(MACHINE_BOOT_FILE, machine_boot_id.encode()))
    effects.trace("started", broker_epoch=image.broker_epoch, clean=clean, topics=len(image.topics))
    return parts


def _wired(
    config: BrokerConfig, rng: Random, metadata: MetadataLog, logs: LogManager, codecs: Codecs
) -> BrokerParts:
    space = FreeSpace()
    replicas = ReplicaManager(logs, space)
    writer = PartitionWriter(logs, replicas)
    image = metadata.image
    groups = GroupCoordinator(
        group_config(config, image),
        writer,
        lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    )
    listeners = {listener.name: listener for listener in read_listeners(config)}
    markers = MarkerSender(logs, replicas, groups.on_marker)
    return BrokerParts(
        config=config,
        listeners=listeners,
        metadata=metadata,
        space=space,
        logs=logs,
        replicas=replicas,
        topics=TopicAdmin(config, metadata, space, rng),
        configs=ConfigAdmin(config, metadata),
        scram=ScramAdmin(metadata, space),
        acls=AclAdmin(metadata, space),
        authorizer=Authorizer(config, image.acls),
        logins=Logins(config, listeners, image, rng),
        markers=markers,
        transactions=TransactionCoordinator(
            transaction_config(config, image), writer, markers, ProducerIdAllocator(metadata, space)
        ),
        groups=groups,
        fetches=DelayedFetches(),
        cleaner=LogCleaner(config, logs, space),
        peers=Peers(),
        decompress=codecs.decompress,
    )


def _may_have_lost_unflushed(storage: Storage, machine_boot_id: str) -> bool:
    last = storage.read(MACHINE_BOOT_FILE, 0, _SMALL_FILE_BYTES)
    return not machine_boot_id or last != machine_boot_id.encode()


def stop(parts: BrokerParts, effects: Effects) -> None:
    """Flush and close every log; the marker that this was done comes last."""
    parts.logs.close(effects)
    text = json.dumps({"version": 0, "brokerEpoch": parts.image.broker_epoch})
    effects.storage.append(WriteFile(CLEAN_SHUTDOWN_FILE, text.encode()))
    effects.trace("stopped", broker_epoch=parts.image.broker_epoch)


def transaction_config(config: BrokerConfig, image: ClusterImage) -> TransactionConfig:
    """The transaction coordinator's part. Counts are those of topics that exist: another count
    would look for transactional ids where they are not.
    """
    return TransactionConfig(
        partition_count=image.partition_count(TRANSACTION_STATE_TOPIC)
        or config.integer("transaction.state.log.num.partitions"),
        offsets_partition_count=image.partition_count(GROUP_METADATA_TOPIC)
        or config.integer("offsets.topic.num.partitions"),
        timeout_ms_max=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_timed_out_interval_ms=config.integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        remove_expired_interval_ms=config.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
        transaction_version=config.integer("transaction.version"),
        fence_commit_after_abort=config.boolean("transaction.fence.commit.after.abort"),
        flush_on_commit=config.boolean("flush.on.commit"),
    )


def group_config(config: BrokerConfig, image: ClusterImage) -> GroupConfig:
    """The group coordinator's part."""
    return GroupConfig(
        partition_count=image.partition_count(GROUP_METADATA_TOPIC)
        or config.integer("offsets.topic.num.partitions"),
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        session_timeout_ms_min=config.integer("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        group_size_max=config.integer("group.max.size"),
        flush_on_commit=config.boolean("flush.on.commit"),
    )


def _random_id(rng: Random) -> str:
    raw = rng.getrandbits(128).to_bytes(16, "big")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _properties(config: BrokerConfig, image: ClusterImage) -> bytes:
    lines = (
        f"version={META_PROPERTIES_VERSION}",
        f"cluster.id={image.cluster_id}",
        f"node.id={config.integer('node.id')}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _read_properties(config: BrokerConfig, storage: Storage) -> dict[str, str]:
    raw = storage.read(META_PROPERTIES_FILE, 0, _SMALL_FILE_BYTES)
    if storage.size_bytes(META_PROPERTIES_FILE) is None:
        return {}
    try:
        properties = parse_properties(raw.decode("utf-8", "replace"))
    except ConfigError as error:
        raise DataDirectoryError(f"{META_PROPERTIES_FILE} is damaged: {error}") from error
    version = properties.get("version")
    if version != META_PROPERTIES_VERSION:
        raise DataDirectoryError(f"{META_PROPERTIES_FILE} has version {version}, not 1")
    node_id = str(config.integer("node.id"))
    if properties.get("node.id") != node_id:
        raise DataDirectoryError(
            f"the data directory belongs to node.id={properties.get('node.id')}, "
            f"this broker has node.id={node_id}"
        )
    return properties


def _check_cluster(properties: dict[str, str], image: ClusterImage) -> None:
    written = properties.get("cluster.id")
    if written is not None and written != image.cluster_id:
        raise DataDirectoryError(
            f"{META_PROPERTIES_FILE} says cluster.id={written}, the metadata log says "
            f"{image.cluster_id or 'nothing'}: files of two clusters are mixed, or the metadata "
            "log was removed"
        )
