"""Starting and stopping a broker: what is read, repaired, made, in which order.

At start: the clean-shutdown marker is taken away, metadata is replayed, logs are recovered, then
the coordinators are loaded, groups first, because finishing a prepared transaction writes markers
that the group coordinator must hear of. Last, when the machine itself went down, transactions that
were open are aborted: Produce is acknowledged before it is flushed (as in Kafka), so records of an
open transaction may be gone, and no later EndTxn may commit what is left of it.

In a cluster the metadata is the registry's. So a start has two parts: `join` makes a member that
reads it and does nothing else, then its logs are opened and it registers.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker_sim.core.config import BrokerConfig, DataDirectoryError
from broker_sim.core.controller import ClusterImage, MetadataLog
from broker_sim.core.controller.acl_admin import AclAdmin
from broker_sim.core.controller.configs import ConfigAdmin
from broker_sim.core.controller.metadata_records import broker_start_record, cluster_record
from broker_sim.core.controller.quota_admin import QuotaAdmin
from broker_sim.core.controller.registrations import BrokerRegistration
from broker_sim.core.controller.replication_control import ReplicationControl
from broker_sim.core.controller.scram import ScramAdmin
from broker_sim.core.controller.topic_changes import TopicAdmin
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.coordinator.partition_writer import MarkerWriter, PartitionWriter
from broker_sim.core.data_directory import CLEAN_SHUTDOWN_FILE, DataDirectory
from broker_sim.core.effects import Effects, Request, Storage, WriteFile
from broker_sim.core.endpoint import read_listeners
from broker_sim.core.free_space import FreeSpace
from broker_sim.core.group import GroupCoordinator
from broker_sim.core.log.compression import Codecs
from broker_sim.core.membership import Alone, ClusterMember, Membership
from broker_sim.core.parts import BrokerParts
from broker_sim.core.peers import Peers
from broker_sim.core.publisher import Publisher, apply_dynamic
from broker_sim.core.quotas import QuotaManager
from broker_sim.core.replica.delayed_fetch import DelayedFetches
from broker_sim.core.replica.fetch_session import SESSION_SLOTS, FetchSessions
from broker_sim.core.replica.log_cleaner import LogCleaner
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.replica.replication import Replication
from broker_sim.core.security.authorizer import Authorizer
from broker_sim.core.security.bearer import TokenChecks
from broker_sim.core.security.logins import Logins
from broker_sim.core.transaction import TransactionCoordinator
from broker_sim.core.transaction.add_retries import AddRetries
from broker_sim.core.transaction.verifier import TransactionVerifier
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.records import CorruptBatch
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs that a broker is made from, and the parts that exist before its other parts."""

    config: BrokerConfig
    storage: Storage
    rng: Random
    codecs: Codecs
    token_checks: TokenChecks
    peers: Peers = field(default_factory=Peers)
    space: FreeSpace = field(default_factory=FreeSpace)


def start(given: Given, machine_boot_id: str, effects: Effects) -> BrokerParts:
    """A broker that is alone, with everything recovered.

    Raises DataDirectoryError when the directory is not its own.
    """
    config = given.config
    directory = DataDirectory(config, given.storage, machine_boot_id)
    directory.begin(effects)
    clean = directory.is_clean
    logs = LogManager(config, given.storage, given.codecs, metadata_read=lambda: 0)
    metadata_log = logs.open_metadata_log(clean_shutdown=clean, effects=effects)
    metadata = MetadataLog(metadata_log, config.integer("node.id"))
    try:
        metadata.load()
    except CorruptBatch as error:
        raise DataDirectoryError(f"the metadata log is damaged: {error}") from error
    image = metadata.image
    directory.check(image)
    _apply_dynamic(config, image, effects)
    if not image.cluster_id:
        metadata.commit([cluster_record(_random_id(given.rng))], effects)
    directory.claim(image, effects)
    metadata.commit([broker_start_record(image.broker_epoch + 1)], effects)
    logs.open_all(image, clean_shutdown=clean, effects=effects)
    if not clean and config.boolean("flush.on.commit"):
        # What a killed process left unflushed was recovered: coordinators answer from it, without
        # another append, so it must be durable before they do.
        internal = (TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC)
        logs.flush([log for (topic, _), log in logs.items() if topic in internal], effects)
    # Nobody registers a broker that is alone, and its answers name it all the same.
    image.brokers[image.node_id] = _registration(config, image.broker_epoch)
    is_new = directory.is_new and not image.topics
    lost = directory.is_other_boot and not (clean or is_new)
    alone = Alone(metadata, given.space)
    parts = _started(given, directory, logs, alone, effects, lost_power=lost)
    # Only now: a crash before this must find the old boot, and abort again.
    directory.note_boot(effects)
    effects.trace("started", broker_epoch=image.broker_epoch, clean=clean, topics=len(image.topics))
    return parts


def join(
    given: Given,
    machine_boot_id: str,
    effects: Effects,
    *,
    decide: Callable[[Request, Effects], Message | None],
    opened: Callable[[BrokerParts, Effects], None],
) -> ClusterMember:
    """A broker that reads the cluster's metadata. When it has, `opened` gets its parts, with
    everything recovered. `decide` handles a request at the controller.

    Raises DataDirectoryError, then or in a later step, when the directory is not its own.
    """
    config = given.config
    directory = DataDirectory(config, given.storage, machine_boot_id)

    def open_logs(member: ClusterMember, effects: Effects) -> None:
        opened(_recovered(given, directory, member, effects), effects)

    member = ClusterMember(
        config,
        given.peers,
        _registration(config, -1, config.text("broker.rack") or None),
        lambda: _random_id(given.rng),
        decide,
        open_logs,
    )
    member.start(effects)
    return member


def _recovered(
    given: Given, directory: DataDirectory, member: ClusterMember, effects: Effects
) -> BrokerParts:
    config, image, clean = given.config, member.image, directory.is_clean
    directory.claim(image, effects)
    lost = directory.is_other_boot and not (clean or directory.is_new)
    if not lost:
        # Else it stays as it was: partitions are led, and loaded, at any time from here on, also
        # by the next process.
        directory.note_boot(effects)
    directory.begin(effects)
    _apply_dynamic(config, image, effects)
    logs = LogManager(config, given.storage, given.codecs, lambda: member.registry_offset)
    logs.load_recovery_points(effects)
    logs.open_all(image, clean_shutdown=clean, effects=effects)
    parts = _started(given, directory, logs, member, effects, lost_power=lost)
    effects.trace("started", clean=clean, lost_power=lost, topics=len(image.topics))
    return parts


def _started(
    given: Given,
    directory: DataDirectory,
    logs: LogManager,
    membership: Membership,
    effects: Effects,
    *,
    lost_power: bool,
) -> BrokerParts:
    """The parts over open logs; from here on changes of the metadata are carried out."""
    # The publisher. From its start on, it carries out changes of the metadata.
    config, rng, space, peers = given.config, given.rng, given.space, given.peers
    image = membership.image
    cleaner = LogCleaner(config, logs, space)
    aborts = lost_power and config.boolean("flush.on.commit")
    publisher = _publisher(given, directory, logs, cleaner, membership, aborts=aborts)
    metadata = membership.carried_out_by(publisher)
    publisher.start(effects)
    # The parts that requests use; they share the publisher's replicas and coordinators.
    listeners = {listener.name: listener for listener in read_listeners(config)}
    return BrokerParts(
        config=config,
        listeners=listeners,
        metadata=metadata,
        membership=membership,
        space=space,
        logs=logs,
        replicas=publisher.replicas,
        replication=publisher.replication,
        topics=TopicAdmin(config, metadata, space, rng, membership.create_later),
        configs=ConfigAdmin(config, metadata),
        scram=ScramAdmin(metadata, space),
        acls=AclAdmin(metadata, space),
        quota_admin=QuotaAdmin(metadata, space),
        quotas=QuotaManager(config, image),
        control=ReplicationControl(image, config),
        authorizer=Authorizer(config, image.acls),
        logins=Logins(config, listeners, image, rng, given.token_checks),
        markers=publisher.markers,
        transactions=publisher.transactions,
        verifier=TransactionVerifier(image, peers),
        add_retries=AddRetries(),
        groups=publisher.groups,
        fetches=DelayedFetches(),
        sessions=FetchSessions(config.integer(SESSION_SLOTS), rng),
        cleaner=cleaner,
        peers=peers,
        decompress=given.codecs.decompress,
    )


def _publisher(
    given: Given,
    directory: DataDirectory,
    logs: LogManager,
    cleaner: LogCleaner,
    membership: Membership,
    *,
    aborts: bool,
) -> Publisher:
    """Replicas, coordinators and publisher: each is made of those before it."""
    # The group coordinator writes offsets through the replicas.
    config, rng, peers, image = given.config, given.rng, given.peers, membership.image
    replicas = ReplicaManager(config, image, logs, given.space)
    writer = PartitionWriter(logs, replicas)
    groups = GroupCoordinator(
        config,
        image,
        writer,
        lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    )
    # The transaction coordinator sends markers, which end transactions in logs and in groups.
    marker_writer = MarkerWriter(replicas, groups.on_marker, groups.is_loading)
    markers = MarkerSender(image, marker_writer, peers)
    transactions = TransactionCoordinator(config, writer, markers, membership.producer_ids)
    # Replication fetches from leaders, and proposes in-sync replicas to the controller.
    replication = Replication(
        config,
        image,
        logs,
        replicas,
        peers,
        cleaner,
        alter_partition=membership.alter_partition,
    )
    # The publisher carries out changes of the metadata in all of them.
    return Publisher(
        config,
        image,
        directory,
        logs,
        replicas,
        transactions,
        groups,
        replication,
        markers,
        lost_power=aborts,
    )


def stop(parts: BrokerParts, effects: Effects) -> None:
    """Flush and close every log; the marker that this was done comes last."""
    parts.logs.close(effects)
    text = json.dumps({"version": 0, "brokerEpoch": parts.image.broker_epoch})
    effects.storage.append(WriteFile(CLEAN_SHUTDOWN_FILE, text.encode()))
    effects.trace("stopped", broker_epoch=parts.image.broker_epoch)


def _registration(config: BrokerConfig, epoch: int, rack: str | None = None) -> BrokerRegistration:
    listeners = {each.name: each.advertised for each in read_listeners(config)}
    return BrokerRegistration(config.integer("node.id"), epoch, listeners, rack)


def _apply_dynamic(config: BrokerConfig, image: ClusterImage, effects: Effects) -> None:
    unusable = apply_dynamic(config, image)
    if unusable:
        effects.trace("unusable-configs", names=unusable)


def _random_id(rng: Random) -> str:
    raw = rng.getrandbits(128).to_bytes(16, "big")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
