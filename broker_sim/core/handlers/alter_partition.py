"""AlterPartition (key 56): the leaders of a broker alter ISRs (KIP-497); from brokers only."""

from __future__ import annotations

from typing import Any

from broker_sim.apis import BROKER_APIS, BrokerApiKey
from broker_sim.core.controller.isr_changes import AlteredPartition, IsrChange
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.handlers._controller import committed, grouped
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import Message

_Response = BROKER_APIS[BrokerApiKey.ALTER_PARTITION].response
_Topic = _Response.TopicData


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each change on its own, unless the broker is not who it takes itself for."""
    if not cluster_allowed(parts, request):
        return refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    message = request.message
    changes = [
        IsrChange(
            topic.topic_id,
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            tuple((each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs),
        )
        for topic in message.topics
        for partition in topic.partitions
    ]
    decision = parts.control.alter_partition(message.broker_id, message.broker_epoch, changes)
    if isinstance(decision.answer, ErrorCode):
        return refused(decision.answer)
    by_topic = grouped(decision.answer, lambda each: each.change.topic_id, _result)
    committed(parts, decision, effects)
    topics = [_Topic(topic_id=key, partitions=results) for key, results in by_topic.items()]
    return _Response(topics=topics)


def refused(error: ErrorCode) -> Message:
    """Nothing was looked at."""
    return _Response(error_code=int(error), topics=[])


def _result(altered: AlteredPartition) -> Any:
    change, error, after = altered
    made = _Topic.PartitionData(partition_index=change.partition, error_code=int(error), isr=[])
    if after is not None:
        made.leader_id, made.isr = after.leader, list(after.isr)
        made.leader_epoch, made.partition_epoch = after.leader_epoch, after.partition_epoch
    return made
