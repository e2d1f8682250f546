"""DescribeTransactions (key 65)."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import topic_allowed, transactional_id_allowed
from broker_sim.core.parts import BrokerParts
from broker_sim.core.transaction.results import TransactionDescription
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_TRANSACTIONS].response
_State = _Response.TransactionState


def handle(parts: BrokerParts, request: Request) -> Message:
    """State, ids and partitions of each transactional id, once."""
    descriptions = [
        _description(parts, request, transactional_id)
        for transactional_id in dict.fromkeys(request.message.transactional_ids)
    ]
    return _Response(transaction_states=[_describe(d) for d in descriptions])


def _description(
    parts: BrokerParts, request: Request, transactional_id: str
) -> TransactionDescription:
    if not transactional_id_allowed(parts, request, transactional_id):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return TransactionDescription(error, transactional_id)
    found = parts.transactions.describe(transactional_id)
    seen = tuple(p for p in found.partitions if topic_allowed(parts, request, p.topic))
    return replace(found, partitions=seen)


def _describe(description: TransactionDescription) -> Any:
    by_topic = groupby(sorted(description.partitions), lambda partition: partition[0])
    return _State(
        error_code=int(description.error),
        transactional_id=description.transactional_id,
        transaction_state=description.state,
        transaction_timeout_ms=description.timeout_ms,
        transaction_start_time_ms=description.start_ms,
        producer_id=description.producer_id,
        producer_epoch=description.producer_epoch,
        topics=[
            _State.TopicData(topic=topic, partitions=[p for _, p in members])
            for topic, members in by_topic
        ],
    )
