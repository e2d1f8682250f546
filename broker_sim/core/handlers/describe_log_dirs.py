"""DescribeLogDirs (key 35): sizes of partitions."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

_Response = APIS[ApiKey.DESCRIBE_LOG_DIRS].response
_Result = _Response.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic


def handle(parts: BrokerParts, request: Request) -> Message:
    """Describe the single directory; a null list of topics means all."""
    if not cluster_allowed(parts, request):
        refused = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return _Response(error_code=refused, results=[])
    volume = parts.logs.volume()
    if volume is None:
        error = int(ErrorCode.KAFKA_STORAGE_ERROR)
        failed = _Result(error_code=error, log_dir="", topics=[])
        return _Response(results=[failed])
    wanted = _wanted(request.message.topics)
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), log in sorted(parts.logs.items()):
        if wanted is None or (topic, partition) in wanted:
            by_topic.setdefault(topic, []).append(
                _Topic.DescribeLogDirsPartition(
                    partition_index=partition, partition_size=log.size_bytes
                )
            )
    result = _Result(
        log_dir=volume.path,
        topics=[_Topic(name=topic, partitions=parts) for topic, parts in by_topic.items()],
        total_bytes=volume.total_bytes,
        usable_bytes=volume.usable_bytes,
    )
    return _Response(results=[result])


def _wanted(topics: Any) -> set[TopicPartition] | None:
    if topics is None:
        return None
    return {TopicPartition(topic.topic, p) for topic in topics for p in topic.partitions}
