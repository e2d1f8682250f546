"""Quotas: how long a broker asks this client to be quiet, and which answers mean it (KIP-219).

Newer brokers answer at once and say for how long the client is to send nothing; whoever sends all
the same finds the connection muted and runs into its timeouts. Before the versions below the
broker held the answer back instead: the client has waited already.
"""

from __future__ import annotations

from txnlog_kafka.wire.messages import ApiKey, Message

_K = ApiKey
THROTTLED_FROM: dict[int, int] = {
    _K.PRODUCE: 6, _K.FETCH: 8, _K.LIST_OFFSETS: 3, _K.METADATA: 6, _K.OFFSET_COMMIT: 4,
    _K.OFFSET_FETCH: 4, _K.FIND_COORDINATOR: 2, _K.JOIN_GROUP: 3, _K.HEARTBEAT: 2,
    _K.LEAVE_GROUP: 2, _K.SYNC_GROUP: 2, _K.DESCRIBE_GROUPS: 2, _K.LIST_GROUPS: 2,
    _K.API_VERSIONS: 2, _K.CREATE_TOPICS: 3, _K.DELETE_TOPICS: 2, _K.DELETE_RECORDS: 1,
    _K.INIT_PRODUCER_ID: 1, _K.ADD_PARTITIONS_TO_TXN: 1, _K.ADD_OFFSETS_TO_TXN: 1, _K.END_TXN: 1,
    _K.TXN_OFFSET_COMMIT: 1, _K.DESCRIBE_CONFIGS: 2, _K.ALTER_CONFIGS: 1, _K.DESCRIBE_LOG_DIRS: 1,
    _K.CREATE_PARTITIONS: 1, _K.DELETE_GROUPS: 1, _K.INCREMENTAL_ALTER_CONFIGS: 0,
    _K.OFFSET_DELETE: 0, _K.DESCRIBE_TOPIC_PARTITIONS: 0,
}  # fmt: skip
"""Kafka's `shouldClientThrottle`: the first version of each answer that leaves it to the client."""

THROTTLE_S_MAX = 60.0
"""Longer waits are limited to this: what a broker says is not believed without a limit."""
NEVER = 1 << 15


def throttle_seconds(api_key: int, version: int, answer: Message) -> float:
    """For how long after this answer the broker wants no further request."""
    if version < THROTTLED_FROM.get(api_key, NEVER):
        return 0.0
    throttle_ms = answer.throttle_time_ms or 0
    return min(throttle_ms / 1000, THROTTLE_S_MAX) if throttle_ms > 0 else 0.0
