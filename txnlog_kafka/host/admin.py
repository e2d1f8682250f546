"""Plain functions over a Client: topics, offsets, groups, transactions, the micro-batch commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations import admin as operations
from txnlog_kafka.operations import log_ends, metadata, offsets
from txnlog_kafka.operations.admin import TransactionDescription, TransactionListing
from txnlog_kafka.operations.offsets import CommittedOffset, ListedOffset
from txnlog_kafka.wire.topics import TopicPartition

EARLIEST = offsets.EARLIEST_TIMESTAMP
LATEST = offsets.LATEST_TIMESTAMP


def topic_partitions(
    client: Client, topics: Iterable[str] | None, *, allow_auto_create: bool = False
) -> dict[str, tuple[int, ...]]:
    """Partition numbers by topic; None asks for all topics, internal ones left out.

    Raises UnknownTopic naming every topic that is missing, DeadlineExceeded.
    """
    session = client.session
    if topics is None:
        return matching_topics(client, lambda _topic: True)
    names = sorted(set(topics))
    client.run(metadata.require_topics(session, names, allow_auto_create=allow_auto_create))
    return {name: session.cluster.partitions(name) for name in names}


def matching_topics(client: Client, selects: Callable[[str], bool]) -> dict[str, tuple[int, ...]]:
    """Partition numbers of those of all topics that `selects` takes, internal ones left out.

    Kafka has no question for names alone: the answer has every partition of every topic. What was
    not selected is forgotten, so that a client does not hold a large cluster. Raises
    DeadlineExceeded.
    """
    session = client.session
    client.run(metadata.refresh_metadata(session, None))
    names = sorted(set(session.cluster.topics) - metadata.KAFKA_INTERNAL_TOPICS)
    session.cluster = session.cluster.with_topics(filter(selects, names))
    return {name: session.cluster.partitions(name) for name in sorted(session.cluster.topics)}


def confirm_missing(
    client: Client, partitions: Iterable[TopicPartition]
) -> frozenset[TopicPartition]:
    """Those of `partitions` that the cluster does not have, asked again and again for a while."""
    return client.run(metadata.confirm_missing(client.session, partitions))


def list_offsets(
    client: Client, specs: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, ListedOffset]:
    """Per partition: EARLIEST, LATEST (the LSO under read_committed) or a timestamp in ms.

    For a timestamp `offset` is -1 when no record is that new. Raises UnknownTopic.
    """
    return client.run(offsets.list_offsets(client.session, specs, read_committed=read_committed))


def confirm_log_ends(
    client: Client, positions: Mapping[TopicPartition, int], said: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The high watermarks of logs that are `said` to end before these positions, of the leaders
    that most brokers say."""
    return client.run(log_ends.confirm_log_ends(client.session, positions, said))


def committed_offsets(
    client: Client,
    group_id: str,
    *,
    partitions: Iterable[TopicPartition] = (),
    require_stable: bool = True,
) -> dict[TopicPartition, int]:
    """All committed offsets of a group; empty for an unknown one.

    Name the `partitions` that matter: Kafka does not report a partition whose first offset ever is
    still undecided, unless it is asked for by name.
    """
    found = client.run(
        offsets.fetch_committed(
            client.session, group_id, partitions=partitions, require_stable=require_stable
        )
    )
    return {partition: c.committed_offset for partition, c in found.items()}


def commit_offsets(client: Client, group_id: str, committed: Mapping[TopicPartition, int]) -> None:
    """A plain OffsetCommit outside any transaction and any group membership."""
    values = {partition: CommittedOffset(offset, "") for partition, offset in committed.items()}
    client.run(offsets.commit_offsets(client.session, group_id, values))


def create_topic(
    client: Client,
    topic: str,
    *,
    partitions: int,
    replication_factor: int = -1,
    config: Mapping[str, str] | None = None,
    exists_ok: bool = False,
) -> None:
    """Create a topic and wait until it has leaders."""
    client.run(
        operations.create_topic(
            client.session,
            topic,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
            exists_ok=exists_ok,
        )
    )


def delete_group(client: Client, group_id: str, *, missing_ok: bool = False) -> None:
    """Delete a group and all its offsets."""
    client.run(operations.delete_group(client.session, group_id, missing_ok=missing_ok))


def list_groups(client: Client) -> tuple[str, ...]:
    """The ids of all groups."""
    return client.run(operations.list_groups(client.session))


def list_transactions(client: Client, states: Iterable[str] = ()) -> tuple[TransactionListing, ...]:
    """All transactional ids with their producer ids and states."""
    return client.run(operations.list_transactions(client.session, states))


def describe_transaction(client: Client, transactional_id: str) -> TransactionDescription | None:
    """What the coordinator knows of a transactional id; None when it does not know it."""
    return client.run(operations.describe_transaction(client.session, transactional_id))


def describe_decided_transaction(
    client: Client, transactional_id: str
) -> TransactionDescription | None:
    """The same, once its markers are written if its outcome is decided. Raises DeadlineExceeded."""
    return client.run(operations.describe_decided_transaction(client.session, transactional_id))
