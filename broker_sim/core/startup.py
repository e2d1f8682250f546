"""Starting and stopping a broker: what is read, repaired, made, in which order.

At start: the clean-shutdown marker is taken away, metadata is replayed, logs are recovered, then
the coordinators are loaded, groups first, because finishing a prepared transaction writes markers
that the group coordinator must hear of. Last, when the machine itself went down, transactions that
were open are aborted: Produce is acknowledged before it is flushed (as in Kafka), so records of an
open transaction may be gone, and no later EndTxn may commit what is left of it.

In a cluster the metadata is the registry's. So a start has two parts: `join` makes a broker that
reads it and does nothing else, then its logs are opened and it registers.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker_sim.core.config import BrokerConfig, ConfigError, DataDirectoryError, parse_properties
from broker_sim.core.controller import ClusterImage, Metadata, MetadataLog
from broker_sim.core.controller.acl_admin import AclAdmin
from broker_sim.core.controller.configs import ConfigAdmin
from broker_sim.core.controller.image import broker_start_record, cluster_record
from broker_sim.core.controller.producer_ids import ProducerIdAllocator, ProducerIdBlocks
from broker_sim.core.controller.registrations import BrokerRegistration
from broker_sim.core.controller.scram import ScramAdmin
from broker_sim.core.controller.topics import TopicAdmin
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.coordinator.partition_writer import MarkerWriter, PartitionWriter
from broker_sim.core.effects import Delete, Effects, Request, Storage, WriteFile
from broker_sim.core.endpoint import read_listeners
from broker_sim.core.free_space import FreeSpace
from broker_sim.core.group import GroupConfig, GroupCoordinator
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.membership import Alone, Membership
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.parts import BrokerParts
from broker_sim.core.peers import Peers
from broker_sim.core.publisher import Publisher, apply_dynamic
from broker_sim.core.replica.delayed_fetch import DelayedFetches
from broker_sim.core.replica.log_cleaner import LogCleaner
from broker_sim.core.replica.log_manager import LogManager, has_log, partition_of_directory
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.replica.replication import Replication
from broker_sim.core.security.authorizer import Authorizer
from broker_sim.core.security.logins import Logins
from broker_sim.core.transaction import TransactionConfig, TransactionCoordinator
from broker_sim.core.transaction.verifier import TransactionVerifier
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.records import CorruptBatch
from txnlog_kafka.wire.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

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
    metadata_log = logs.open_metadata_log(clean_shutdown=clean, effects=effects)
    metadata = MetadataLog(metadata_log, config.integer("node.id"))
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
    alone = Alone(config.integer("node.id"))
    parts = _wired(_Given(config, rng, codecs, Peers(), alone), metadata, logs)
    _own_registration(config, image)
    is_new = not properties and not image.topics
    lost = not (clean or is_new) and _may_have_lost_unflushed(storage, machine_boot_id)
    _start_parts(parts, metadata, effects, lost_power=lost)
    # Only now: a crash before this must find the old boot, and abort again.
    effects.storage.append(WriteFile(MACHINE_BOOT_FILE, machine_boot_id.encode()))
    effects.trace("started", broker_epoch=image.broker_epoch, clean=clean, topics=len(image.topics))
    return parts


def _start_parts(
    parts: BrokerParts,
    metadata: MetadataLog | ClusterMetadata,
    effects: Effects,
    *,
    lost_power: bool,
) -> Publisher:
    """The coordinators, and the replicas of a cluster; from here on changes are carried out."""
    aborts = lost_power and parts.config.boolean("flush.on.commit")
    publisher = Publisher(
        parts.config,
        parts.image,
        parts.logs,
        parts.replicas,
        parts.transactions,
        parts.groups,
        parts.replication,
        parts.markers,
        lost_power=aborts,
    )
    metadata.publish = publisher.publish
    for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        publisher.load(topic, effects)
    parts.groups.start(effects)
    parts.replication.start(effects)
    parts.transactions.start(effects, abort_open=aborts)
    return publisher


def join(
    config: BrokerConfig,
    storage: Storage,
    rng: Random,
    effects: Effects,
    *,
    machine_boot_id: str = "",
    codecs: Codecs = NO_CODECS,
    decide: Callable[[Request, Effects], Message | None],
    opened: Callable[[BrokerParts, Effects], None],
) -> BrokerParts:
    """A broker that reads the cluster's metadata. When it has, `opened` gets one with everything
    recovered, in place of this one. `decide` handles a request at the controller.

    Raises DataDirectoryError, then or in a later step, when the directory is not its own.
    """
    properties = _read_properties(config, storage)
    node_id = config.integer("node.id")
    metadata, peers = ClusterMetadata(node_id), Peers()
    listeners = {each.name: each.advertised for each in read_listeners(config)}
    rack = config.text("broker.rack") or None
    broker = BrokerRegistration(node_id, -1, listeners, rack)
    membership = Membership(config, peers, metadata, broker, lambda: _random_id(rng))

    given = _Given(config, rng, codecs, peers, membership)

    def stamp(effects: Effects) -> None:
        _check_cluster(properties, metadata.image)
        if metadata.image.cluster_id and not properties:
            data = _properties(config, metadata.image)
            effects.storage.append(WriteFile(META_PROPERTIES_FILE, data))

    def open_logs(effects: Effects) -> None:
        stamp(effects)
        metadata.on_cluster_id = stamp
        clean = storage.size_bytes(CLEAN_SHUTDOWN_FILE) is not None
        lost = bool(properties) and not clean
        lost = lost and _may_have_lost_unflushed(storage, machine_boot_id)
        if not lost:
            # Else it stays as it was: partitions are led, and loaded, at any time from here on,
            # also by the next process.
            effects.storage.append(WriteFile(MACHINE_BOOT_FILE, machine_boot_id.encode()))
        if clean:
            effects.storage.append(Delete(CLEAN_SHUTDOWN_FILE))
        unusable = apply_dynamic(config, metadata.image)
        if unusable:
            effects.trace("unusable-configs", names=unusable)
        logs = LogManager(config, storage, codecs)
        logs.metadata_read = lambda: metadata.next_offset
        logs.load_recovery_points(effects)
        logs.open_all(metadata.image, clean_shutdown=clean, effects=effects)
        parts = _wired(given, metadata, logs)
        parts.replication.alter_partition = membership.isr_proposals.propose
        parts.topics.create_later = membership.creations.create
        membership.fence = _start_parts(parts, metadata, effects, lost_power=lost).fence
        effects.trace("started", clean=clean, lost_power=lost, topics=len(metadata.image.topics))
        opened(parts, effects)

    membership.open = open_logs
    membership.handle = decide
    membership.start(effects)
    return _wired(given, metadata, LogManager(config, storage, codecs))


def _own_registration(config: BrokerConfig, image: ClusterImage) -> None:
    """Nobody registers a broker that is alone, and its answers name it all the same."""
    listeners = {each.name: each.advertised for each in read_listeners(config)}
    image.brokers[image.node_id] = BrokerRegistration(image.node_id, image.broker_epoch, listeners)


@dataclass(frozen=True, slots=True)
class _Given:
    """What the parts are made from, and what they share with those of before the logs are open."""

    config: BrokerConfig
    rng: Random
    codecs: Codecs
    peers: Peers
    membership: Alone | Membership
    space: FreeSpace = field(default_factory=FreeSpace)


def _wired(given: _Given, metadata: MetadataLog | ClusterMetadata, logs: LogManager) -> BrokerParts:
    config, rng, space, peers = given.config, given.rng, given.space, given.peers
    image = metadata.image
    replicas = ReplicaManager(config, image, logs, space)
    writer = PartitionWriter(logs, replicas)
    cleaner = LogCleaner(config, logs, space)
    groups = GroupCoordinator(
        group_config(config, image),
        writer,
        lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    )
    listeners = {listener.name: listener for listener in read_listeners(config)}
    marker_writer = MarkerWriter(replicas, groups.on_marker, groups.is_loading)
    markers = MarkerSender(image, marker_writer, peers)
    return BrokerParts(
        config=config,
        listeners=listeners,
        metadata=metadata,
        membership=given.membership,
        space=space,
        logs=logs,
        replicas=replicas,
        replication=Replication(config, image, logs, replicas, peers, cleaner),
        topics=TopicAdmin(config, metadata, space, rng),
        configs=ConfigAdmin(config, metadata),
        scram=ScramAdmin(metadata, space),
        acls=AclAdmin(metadata, space),
        authorizer=Authorizer(config, image.acls),
        logins=Logins(config, listeners, image, rng),
        markers=markers,
        transactions=TransactionCoordinator(
            transaction_config(config, image), writer, markers, _producer_ids(given, metadata)
        ),
        verifier=TransactionVerifier(image, peers),
        groups=groups,
        fetches=DelayedFetches(),
        cleaner=cleaner,
        peers=peers,
        decompress=given.codecs.decompress,
    )


def _producer_ids(given: _Given, metadata: Metadata) -> ProducerIdBlocks:
    if isinstance(given.membership, Membership):
        return given.membership.producer_ids
    return ProducerIdAllocator(metadata, given.space)


def _may_have_lost_unflushed(storage: Storage, machine_boot_id: str) -> bool:
    last = storage.read(MACHINE_BOOT_FILE, 0, _SMALL_FILE_BYTES)
    return not machine_boot_id or last != machine_boot_id.encode()


def stop(parts: BrokerParts, effects: Effects) -> None:
    """Flush and close every log; the marker that this was done comes last."""
    if isinstance(parts.membership, Membership):
        parts.membership.stop(effects)
        if not parts.membership.is_open:
            return  # what the last stop has left is untouched
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
        named = filter(partition_of_directory, storage.list(""))
        logs = [directory for directory in named if has_log(directory, storage)]
        if logs:
            # They would be taken for those of partitions that the cluster does not have.
            raise DataDirectoryError(
                f"the directory has logs of partitions, such as {logs[0]}, and no "
                f"{META_PROPERTIES_FILE}, which says whose they are: put it back, or start the "
                "broker with an empty directory"
            )
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
            "log was removed (in a cluster, the data directory of the registry). Nothing was "
            "changed: put back what belongs together"
        )
