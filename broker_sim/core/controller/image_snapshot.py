"""A snapshot of the cluster image: records that make it, in place of what led to it (KIP-630)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

from broker_sim.core.controller.image import ClusterImage, MetadataRecord
from broker_sim.core.controller.metadata_records import (
    acl_record,
    broker_configs_record,
    broker_fenced_record,
    broker_registered_record,
    client_quotas_record,
    cluster_record,
    group_configs_record,
    producer_ids_record,
    scram_record,
    topic_record,
)


def image_records(image: ClusterImage) -> Iterator[MetadataRecord]:
    """Replayed on an empty image they come to this one, of a broker in a cluster; everything is in
    the order in which it came."""
    if image.cluster_id:
        yield cluster_record(image.cluster_id)
    for broker in image.fenced.values():
        yield broker_registered_record(broker)
        yield broker_fenced_record(broker.broker_id)
    for broker in image.brokers.values():
        yield broker_registered_record(broker)
    for name, configs in image.broker_configs.items():
        yield broker_configs_record(name, configs)
    for group_id, own in image.group_configs.items():
        yield group_configs_record(group_id, own)
    yield from starmap(client_quotas_record, image.client_quotas.items())
    for topic in image.topics.values():
        yield topic_record(topic)
    if image.next_producer_id:
        yield producer_ids_record(image.next_producer_id)
    for acl in image.acls:
        yield acl_record(acl)
    for (user, mechanism), credential in image.scram_credentials.items():
        yield scram_record(user, mechanism, credential)
