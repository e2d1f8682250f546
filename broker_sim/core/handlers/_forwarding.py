"""Requests that the controller carries out, at whichever broker they arrive.

A broker that is alone is its own controller, and carries them out where they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker_sim.core.effects import Close, Effects, Request
from broker_sim.core.membership import ClusterMember
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey, Message

_K = ApiKey
_Refuse = Callable[[Any, Any, dict[str, Any]], Message]
_TEXT = "The controller has not answered in time."


def forward(member: ClusterMember, _parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Answered when the controller has; REQUEST_TIMED_OUT when none does in time."""
    member.requests.forward(request, partial(_answer, request), effects)


def carry_out(
    member: ClusterMember,
    refused: Callable[[ErrorCode], Message],
    _parts: BrokerParts,
    request: Request,
    effects: Effects,
) -> None:
    """Carry out another broker's request; answer `refused` if this broker is not the controller."""

    def on_answer(answer: Any, effects: Effects) -> None:
        message = refused(answer) if isinstance(answer, ErrorCode) else answer
        respond(request, message, effects)

    member.carry_out(request, on_answer, effects)


def _answer(request: Request, answer: Any, effects: Effects) -> None:
    if not isinstance(answer, ErrorCode):
        respond(request, answer, effects)
    elif answer is ErrorCode.REQUEST_TIMED_OUT:
        respond(request, refusal(request, answer), effects)
    else:
        reason = f"{request.api_key.name} failed at the controller: {answer.name}"
        effects.responses.append(Close(request.connection_id, reason))


def refusal(request: Request, error: ErrorCode, text: str = _TEXT) -> Message:
    """The answer to a request of which nothing was carried out, as far as this broker knows."""
    key = ApiKey(request.api_key)
    fields = {"error_code": int(error), "error_message": text}
    return FORWARDED[key](KNOWN_APIS[key].response, request.message, fields)


def _of_topics(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = answer.CreatableTopicResult
    topics = [result(name=each.name, configs=None, **fields) for each in message.topics]
    return answer(topics=topics)


def _of_deletions(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = answer.DeletableTopicResult
    named = [result(name=name, **fields) for name in message.topic_names or ()]
    named += [result(name=e.name, topic_id=e.topic_id, **fields) for e in message.topics or ()]
    return answer(responses=named)


def _of_partitions(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = answer.CreatePartitionsTopicResult
    return answer(results=[result(name=each.name, **fields) for each in message.topics])


def _of_configs(struct_name: str, answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = getattr(answer, struct_name)
    return answer(
        responses=[
            result(resource_type=each.resource_type, resource_name=each.resource_name, **fields)
            for each in message.resources
        ]
    )


def _of_acls(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    results = [answer.AclCreationResult(**fields) for _ in message.creations]
    return answer(results=results)


def _of_filters(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = answer.DeleteAclsFilterResult
    results = [result(matching_acls=[], **fields) for _ in message.filters]
    return answer(filter_results=results)


def _of_users(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = answer.AlterUserScramCredentialsResult
    names = dict.fromkeys(each.name for each in (*message.deletions, *message.upsertions))
    results = [result(user=name, **fields) for name in names]
    return answer(results=results)


def _of_quotas(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    entry, entity = answer.EntryData, answer.EntryData.EntityData
    return answer(
        entries=[
            entry(
                entity=[
                    entity(entity_type=e.entity_type, entity_name=e.entity_name) for e in named
                ],
                **fields,
            )
            for named in (each.entity for each in message.entries)
        ]
    )


def _of_elections(answer: Any, message: Any, fields: dict[str, Any]) -> Message:
    result = answer.ReplicaElectionResult
    return answer(
        error_code=fields["error_code"],
        replica_election_results=[
            result(
                topic=each.topic,
                partition_result=[
                    result.PartitionResult(partition_id=number, **fields)
                    for number in each.partitions
                ],
            )
            for each in message.topic_partitions or ()
        ],
    )


def _of_all(answer: Any, _message: Any, fields: dict[str, Any]) -> Message:
    return answer(**fields)


FORWARDED: Mapping[ApiKey, _Refuse] = {
    _K.CREATE_TOPICS: _of_topics,
    _K.DELETE_TOPICS: _of_deletions,
    _K.CREATE_PARTITIONS: _of_partitions,
    _K.ALTER_CONFIGS: partial(_of_configs, "AlterConfigsResourceResponse"),
    _K.INCREMENTAL_ALTER_CONFIGS: partial(_of_configs, "AlterConfigsResourceResponse"),
    _K.CREATE_ACLS: _of_acls,
    _K.DELETE_ACLS: _of_filters,
    _K.ALTER_USER_SCRAM_CREDENTIALS: _of_users,
    _K.ALTER_CLIENT_QUOTAS: _of_quotas,
    _K.ELECT_LEADERS: _of_elections,
    _K.ALTER_PARTITION_REASSIGNMENTS: _of_all,
    _K.LIST_PARTITION_REASSIGNMENTS: _of_all,
}
"""Forwarded APIs, with the function that refuses each as a whole."""
