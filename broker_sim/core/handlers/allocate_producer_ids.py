"""AllocateProducerIds (key 67): a block of producer ids for a broker (KIP-730)."""

from __future__ import annotations

from broker_sim.apis import BROKER_APIS, BrokerApiKey
from broker_sim.core.controller.metadata_records import producer_ids_record
from broker_sim.core.controller.producer_ids import PRODUCER_ID_BLOCK_SIZE
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import Message

_Response = BROKER_APIS[BrokerApiKey.ALLOCATE_PRODUCER_IDS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Ids that were given to nobody; to a broker as it is registered."""
    message, image = request.message, parts.image
    if not cluster_allowed(parts, request):
        return refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    known = image.brokers.get(message.broker_id)
    if known is None or known.epoch != message.broker_epoch:
        return refused(ErrorCode.STALE_BROKER_EPOCH)
    first = image.next_producer_id
    parts.metadata.commit([producer_ids_record(first + PRODUCER_ID_BLOCK_SIZE)], effects)
    return _Response(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE)


def refused(error: ErrorCode) -> Message:
    """No block."""
    return _Response(error_code=int(error), producer_id_start=-1, producer_id_len=0)
