"""What a consumer's subscription says about topics: the one opaque blob the coordinator looks at.

Layout of version 0, which every later version begins with (source: Kafka's
ConsumerProtocolSubscription.json): int16 version, array of string topics.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.coordinator.codec import CorruptRecord, RecordReader

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of these subscriptions; None when one of them cannot be read."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            reader = RecordReader(subscription)
            topics.update(reader.string() for _ in range(reader.array_length() or 0))
    except CorruptRecord:
        return None
    return frozenset(topics)
