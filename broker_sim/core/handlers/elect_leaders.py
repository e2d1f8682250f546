"""ElectLeaders (key 43): preferred and unclean elections on demand (KIP-183, 460)."""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.controller.election import Election
from broker_sim.core.controller.replication_control import PartitionResult
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.handlers._controller import committed, results_by_topic
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import CLUSTER_APIS, ApiKey, Message

_Response = CLUSTER_APIS[ApiKey.ELECT_LEADERS].response
_Results = _Response.ReplicaElectionResult
_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}
TYPE_VERSION = 1
"""Before it all elections are preferred ones."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Elect leaders of these partitions, or of all that need an election."""
    message = request.message
    if not cluster_allowed(parts, request):
        return _answer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())
    wanted = 0 if request.api_version < TYPE_VERSION else message.election_type
    election = _ELECTIONS.get(wanted)
    if election is None:
        return _answer(ErrorCode.INVALID_REQUEST, ())
    partitions = None
    if message.topic_partitions is not None:
        partitions = [(each.topic, n) for each in message.topic_partitions for n in each.partitions]
    decision = parts.control.elect_leaders(election, partitions)
    results = committed(parts, decision, effects)
    return _answer(ErrorCode.NONE, results)


def _answer(error: ErrorCode, results: Iterable[PartitionResult]) -> Message:
    by_topic = results_by_topic(results, _Results.PartitionResult, "partition_id")
    return _Response(
        error_code=int(error),
        replica_election_results=[
            _Results(topic=name, partition_result=made) for name, made in by_topic.items()
        ],
    )
