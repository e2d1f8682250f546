"""The brokers as a finite automaton: states of the `Reference` by number, each step computed once.

A transaction is decided when EndTxn or InitProducerId is carried out; its markers are written by a
step of their own (`complete`), at any later time. Meanwhile a leader goes on taking what the
deciding epoch sends, as Kafka's does: it learns from the marker that the transaction is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from support.models.transactions import Reference
from support.raw.requests import made_of

from txnlog_kafka.operations.effects import Call, Reply
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.framing import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_kafka.wire.records import decode_records, iter_batches

NODE = {"node_id": 1, "host": "h", "port": 9001}
NOT_COMMITTED = (-1, "")


def version_of(call: Call) -> int:
    newest = api_of(call.message).version_max
    return newest if call.version_max is None else min(newest, call.version_max)


def carry_out(broker: Reference, call: Call) -> Reply:
    """Change the broker as the request says; its answer."""
    api, version = api_of(call.message), version_of(call)
    _, message = decode_request(encode_request(call.message, version, 1, "")[4:])
    answer = made_of(api.response, _ANSWERS[api.key](broker, message, version))
    frame = encode_response(api.key, version, 1, answer)
    return Reply(decode_response(api, version, frame[4:]), version)


def _api_versions(broker: Reference, _message: Any, _version: int) -> dict[str, Any]:
    feature = {"name": "transaction.version", "max_version_level": broker.server_version}
    return {"finalized_features": [feature], "finalized_features_epoch": 1}


def _metadata(_broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    """Describe the topics; each has one partition."""
    partition = {"partition_index": 0, "leader_id": NODE["node_id"]}
    topics = [{"name": topic.name, "partitions": [partition]} for topic in message.topics]
    return {"brokers": [NODE], "cluster_id": "c", "controller_id": 1, "topics": topics}


def _find_coordinator(_broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    return {"coordinators": [{"key": key, **NODE} for key in message.coordinator_keys]}


def _list_offsets(_broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    """Logs are not trimmed: the earliest offset is 0. Nothing here asks for another one."""
    return {"topics": _by_partition(message.topics, {"offset": 0, "timestamp": -1})}


def _describe_groups(_broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    """Groups that hold offsets, and have no members."""
    return {"groups": [{"group_id": group_id} for group_id in message.groups]}


def _init_producer_id(broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    held = (message.producer_id, message.producer_epoch) if message.producer_id >= 0 else None
    name, timeout_ms = message.transactional_id, message.transaction_timeout_ms
    error, (producer_id, epoch) = broker.init(name, timeout_ms, held)
    return {"error_code": E[error], "producer_id": producer_id, "producer_epoch": epoch}


def _add_partitions(broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    topics = message.v3_and_below_topics
    error = broker.add(
        message.v3_and_below_transactional_id,
        (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch),
        {(topic.name, number) for topic in topics for number in topic.partitions},
        0,
    )
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": E[error]}
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]
    return {"results_by_topic_v3_and_below": results}


def _add_offsets(broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    place = broker.group_place[message.group_id]
    error = broker.add(message.transactional_id, _held(message), {place}, 0)
    return {"error_code": E[error]}


def _txn_offset_commit(broker: Reference, message: Any, version: int) -> dict[str, Any]:
    name, offsets = message.transactional_id, _offsets(message)
    error = broker.commit_offsets(name, _held(message), message.group_id, offsets, version)
    return {"topics": _by_partition(message.topics, {"error_code": E[error]})}


def _offset_commit(broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    for partition, offset in _offsets(message).items():
        broker.offsets[message.group_id, partition] = offset
    return {"topics": _by_partition(message.topics, {"error_code": E.NONE})}


def _offset_fetch(broker: Reference, message: Any, _version: int) -> dict[str, Any]:
    """Return offsets as Kafka does: the answer for a whole group leaves out an undecided first
    offset."""
    (group,) = message.groups
    known = broker.committed(group.group_id)
    unstable = broker.unstable(group.group_id) if message.require_stable else ()
    named = [
        (topic.name, number) for topic in group.topics or () for number in topic.partition_indexes
    ]
    topics = []
    for place in named or sorted(known):
        offset, metadata = NOT_COMMITTED if place in unstable else known.get(place, NOT_COMMITTED)
        code = E.UNSTABLE_OFFSET_COMMIT if place in unstable else E.NONE
        topics.append(
            {
                "name": place[0],
                "partitions": [
                    {
                        "partition_index": place[1],
                        "committed_offset": offset,
                        "metadata": metadata,
                        "error_code": code,
                    }
                ],
            }
        )
    return {"groups": [{"group_id": group.group_id, "topics": topics}]}


def _produce(broker: Reference, message: Any, version: int) -> dict[str, Any]:
    """Append the batches; each entry of the request has one batch."""
    responses = []
    for topic in message.topic_data:
        for entry in topic.partition_data:
            ((header, at),) = iter_batches(entry.records)
            values = [record.value for record in decode_records(entry.records, at, header)]
            error = broker.produce(
                message.transactional_id,
                (header.producer_id, header.producer_epoch),
                (topic.name, entry.index),
                header.base_sequence,
                values,
                version,
            )
            part = {"index": entry.index, "error_code": E[error], "base_offset": 0}
            responses.append({"name": topic.name, "partition_responses": [part]})
    return {"responses": responses}


def _end_txn(broker: Reference, message: Any, version: int) -> dict[str, Any]:
    error, (producer_id, epoch) = broker.end(
        message.transactional_id, _held(message), message.committed, version
    )
    return {"error_code": E[error], "producer_id": producer_id, "producer_epoch": epoch}


def _held(message: Any) -> tuple[int, int]:
    return message.producer_id, message.producer_epoch


def _offsets(message: Any) -> dict[tuple[str, int], tuple[int, str]]:
    return {
        (topic.name, each.partition_index): (each.committed_offset, each.committed_metadata or "")
        for topic in message.topics
        for each in topic.partitions
    }


def _by_partition(topics: Any, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The same answer for each partition."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, **answer} for each in topic.partitions
            ],
        }
        for topic in topics
    ]


_ANSWERS: dict[ApiKey, Callable[[Reference, Any, int], dict[str, Any]]] = {
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.METADATA: _metadata,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.PRODUCE: _produce,
    ApiKey.END_TXN: _end_txn,
}


class BrokerAutomaton:
    """States are numbers, 0 the first; `ask` and `complete` lead from one to another."""

    def __init__(self, transaction_version: int, groups: Sequence[str]) -> None:
        """The offsets of each group are on a partition of their own."""
        self.states: list[Reference] = []
        """States by number; they must not be changed."""
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, bytes], tuple[int, Reply, str]] = {}
        self._changes: dict[Any, int] = {}
        self._undecided: list[list[str]] = []
        first = Reference(transaction_version)
        first.group_place = {group: ("__consumer_offsets", n) for n, group in enumerate(groups)}
        self._number_of(first)

    def answer(self, call: Call) -> Reply:
        """To a request whose answer is the same in every state."""
        return carry_out(self.states[0].copy(), call)

    def ask(self, number: int, call: Call, key: bytes) -> tuple[int, Reply, str]:
        """Carry a request out; `key` names it. The state after it, the answer, and its name."""
        step = self._steps.get((number, key))
        if step is None:
            changed = self.states[number].copy()
            reply = carry_out(changed, call)
            step = self._steps[number, key] = (self._number_of(changed), reply, repr(reply))
        return step

    def undecided(self, number: int) -> list[str]:
        return self._undecided[number]

    def complete(self, number: int, name: str) -> int:
        return self._changed(number, name, Reference.mark)

    def time_out(self, number: int, name: str) -> int:
        """A transaction has been open for too long."""
        return self._changed(number, name, Reference.fence)

    def _changed(self, number: int, name: str, change: Callable[[Reference, str], None]) -> int:
        key = (number, name, change)
        if key not in self._changes:
            changed = self.states[number].copy()
            change(changed, name)
            self._changes[key] = self._number_of(changed)
        return self._changes[key]

    def _number_of(self, state: Reference) -> int:
        number = self._numbers.setdefault(state.key(), len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._undecided.append(state.pending())
        return number
