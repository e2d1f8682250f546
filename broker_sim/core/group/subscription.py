"""What a consumer's subscription says about topics: the one opaque blob the coordinator looks at.

Every version begins with the fields of version 0, so that is how all of them are read (as Kafka's
coordinator does).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.coordinator.codec import CorruptRecord, decode_fields, version_of
from broker_sim.schemas import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of these subscriptions; None when one of them cannot be read."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            version_of(subscription)
            fields = decode_fields(ConsumerProtocolSubscription, subscription, version=0)
            topics.update(fields.topics)
    except CorruptRecord:
        return None
    return frozenset(topics)
