"""Changes of topics: each is first in the metadata log, durable; the publisher carries it out.

A crash in between is repaired at the next start: missing logs are created, logs of no topic are set
aside (`LogManager.open_all`). Refusals are raised as `TopicRefused` with the answer's code.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker_sim.core.config import BrokerConfig, ConfigValue
from broker_sim.core.controller import Metadata, Topic
from broker_sim.core.controller.metadata_records import (
    partitions_record,
    topic_deleted_record,
    topic_record,
)
from broker_sim.core.controller.new_partitions import (
    assigned_partitions,
    more_partitions,
    placed_partitions,
)
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.controller.topic_rules import (
    TopicRefused,
    assigned_count,
    check_no_collision,
    check_partition_count,
    check_replicas,
    check_topic_name,
    parse_topic_configs,
)
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import NO_FREE_SPACE, FreeSpace
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

if TYPE_CHECKING:
    from random import Random

_FACTORS = {
    GROUP_METADATA_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
}
USE_DEFAULT = -1
"""A partition count or replication factor that the client leaves to the broker."""


class TopicAdmin:
    """Creates, changes and deletes topics."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        space: FreeSpace,
        rng: Random,
        create_later: Callable[[Sequence[str], Effects], None] | None,
    ) -> None:
        """`create_later` asks the controller of a cluster to create topics; None where a broker is
        alone."""
        self._config = config
        self._metadata = metadata
        self._space = space
        self._rng = rng
        self._create_later = create_later
        self._is_alone = create_later is None

    def plan(
        self,
        name: str,
        *,
        partition_count: int = USE_DEFAULT,
        replication_factor: int = USE_DEFAULT,
        assignments: Sequence[tuple[int, Sequence[int]]] = (),
        configs: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """The topic that `create_all` would make. Raises TopicRefused; changes nothing.

        Checked in the order of Kafka's `ReplicationControlManager`: a topic that exists comes
        before a name that collides, and configurations come before counts. `assignments` are
        (partition, replicas) pairs in place of the counts.
        """
        image = self._metadata.image
        if name == METADATA_TOPIC:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, f"{name} cannot be created")
        check_topic_name(name)
        if name in image.topics:
            raise TopicRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        check_no_collision(name, image.topics)
        parsed = parse_topic_configs(configs or {}, self._config)
        if assignments:
            count = self._assigned_count(partition_count, replication_factor, assignments)
            check_partition_count(count)
        else:
            count = self._count_by_numbers(partition_count, replication_factor)
        self._check_space()
        if name in INTERNAL_TOPICS:
            count, parsed = self._internal(name)
        placed: tuple[PartitionRegistration, ...] = ()
        if assignments and not self._is_alone:
            placed = assigned_partitions(image, [replicas for _, replicas in sorted(assignments)])
        elif not self._is_alone:
            placed = self._placed(name, count, replication_factor)
        topic_id = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        return Topic(name, topic_id, count, parsed, image.broker_epoch, placed)

    def create_all(self, topics: Sequence[Topic], effects: Effects) -> None:
        """Make planned topics real: all of them, or after a crash none."""
        if topics:
            self._metadata.commit([topic_record(topic) for topic in topics], effects)

    def create_on_demand(self, topics: Sequence[Topic], effects: Effects) -> None:
        """Topics that somebody needs; in a cluster they come to be later, when the controller has
        planned them itself."""
        if self._create_later is None:
            self.create_all(topics, effects)
        else:
            self._create_later([topic.name for topic in topics], effects)

    def ensure_internal(self, name: str, effects: Effects) -> bool:
        """Create an internal topic when it is first needed; False while it does not exist, or
        without free space for it."""
        if name in self._metadata.image.topics:
            return True
        if self._create_later is not None:
            self._create_later([name], effects)
            return False
        if self._space.is_low:
            return False
        self.create_all([self.plan(name)], effects)
        return True

    def delete(self, topic: Topic, effects: Effects) -> None:
        """Remove a topic and its records. Raises TopicRefused."""
        if topic.is_internal:
            raise TopicRefused(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal and cannot be deleted"
            )
        self._metadata.commit([topic_deleted_record(topic)], effects)

    def plan_more_partitions(
        self, topic: Topic, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> tuple[PartitionRegistration, ...]:
        """Return the new partitions of a topic that grows to `count`; none where a broker is alone.

        `assignments` are the replicas of each new partition, None to leave them to the broker.
        Raises TopicRefused; changes nothing.
        """
        present = topic.partition_count
        if topic.is_internal:
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST, f"the partition count of {topic.name} is fixed"
            )
        if count <= present:
            raise TopicRefused(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic '{topic.name}' has {present} partitions, {count} are not more",
            )
        if assignments is not None:
            if len(assignments) != count - present:
                raise TopicRefused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(assignments)} assignments for {count - present} new partitions",
                )
            for replicas in assignments if self._is_alone else ():
                check_replicas(replicas, self._config.integer("node.id"))
        check_partition_count(count)
        self._check_space()
        if self._is_alone:
            return ()
        draw = self._rng.randrange
        return more_partitions(self._metadata.image, topic, count, draw, assignments)

    def add_partitions(
        self,
        topic: Topic,
        count: int,
        new: Sequence[PartitionRegistration],
        effects: Effects,
    ) -> None:
        """Grow the topic to `count` partitions; the new ones are empty."""
        self._metadata.commit([partitions_record(topic, count, new)], effects)

    def _check_space(self) -> None:
        if self._space.is_low:
            raise TopicRefused(ErrorCode.KAFKA_STORAGE_ERROR, NO_FREE_SPACE)

    def _assigned_count(
        self,
        partition_count: int,
        replication_factor: int,
        assignments: Sequence[tuple[int, Sequence[int]]],
    ) -> int:
        for value, what in (
            (replication_factor, "replication factor"),
            (partition_count, "partition count"),
        ):
            if value != USE_DEFAULT:
                raise TopicRefused(
                    ErrorCode.INVALID_REQUEST, f"a {what} of {value} and an assignment were given"
                )
        alone = self._config.integer("node.id") if self._is_alone else None
        return assigned_count(assignments, alone)

    def _placed(
        self, name: str, count: int, replication_factor: int
    ) -> tuple[PartitionRegistration, ...]:
        """On the brokers that are up. What the caller says of an internal topic does not count."""
        if name in INTERNAL_TOPICS or replication_factor == USE_DEFAULT:
            option = _FACTORS.get(name, "default.replication.factor")
            replication_factor = self._config.integer(option)
        draw = self._rng.randrange
        return placed_partitions(self._metadata.image, count, replication_factor, draw)

    def _count_by_numbers(self, partition_count: int, replication_factor: int) -> int:
        """Return the partition count.

        Brokers for all replicas are checked last: in a cluster, when the replicas are placed.
        """
        if replication_factor != USE_DEFAULT and replication_factor < 1:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR, f"{replication_factor} replicas cannot be"
            )
        count = partition_count
        if count == USE_DEFAULT:
            count = self._config.integer("num.partitions")
        check_partition_count(count)
        if self._is_alone:
            self._check_alone(replication_factor)
        return count

    def _check_alone(self, replication_factor: int) -> None:
        if replication_factor == USE_DEFAULT:
            replication_factor = self._config.integer("default.replication.factor")
        if replication_factor != 1:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{replication_factor} replicas are not possible: the cluster has 1 broker",
            )

    def _internal(self, name: str) -> tuple[int, dict[str, ConfigValue]]:
        config = self._config
        options: dict[str, ConfigValue] = {"cleanup.policy": "compact"}
        if name == TRANSACTION_STATE_TOPIC:
            count = config.integer("transaction.state.log.num.partitions")
            segment_bytes = config.integer("transaction.state.log.segment.bytes")
            if not self._is_alone:
                options["min.insync.replicas"] = config.integer("transaction.state.log.min.isr")
                # Whatever the brokers' default is (Kafka's TransactionStateManager): a decision
                # that was answered must not be lost.
                options["unclean.leader.election.enable"] = False
        else:
            count = config.integer("offsets.topic.num.partitions")
            segment_bytes = config.integer("offsets.topic.segment.bytes")
        return count, options | {"segment.bytes": segment_bytes}
