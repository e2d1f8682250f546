"""Answers of the scripted broker: one function per request, and the error answer of each."""

from __future__ import annotations

from typing import Any

from txnlog_kafka.wire.errors import ErrorCode as E
from txnlog_kafka.wire.messages import APIS, ApiKey

COORDINATOR_NODE = 1


def _response(api_key: ApiKey) -> Any:
    return APIS[api_key].response


def answer(cluster: Any, api_key: ApiKey, message: Any, version: int) -> Any:
    """Carry the request out and answer it."""
    return _ANSWERS[api_key](cluster, message, version)


def _api_versions(cluster, _message, _version):
    response = _response(ApiKey.API_VERSIONS)
    feature = response.FinalizedFeatureKey(
        name="transaction.version", max_version_level=cluster.transaction_version
    )
    return response(finalized_features=[feature], finalized_features_epoch=1)


def _metadata(cluster, message, _version):
    response = _response(ApiKey.METADATA)
    topic_type = response.MetadataResponseTopic
    known: dict[str, list[int]] = {}
    for topic, number in sorted(cluster.leaders):
        known.setdefault(topic, []).append(number)
    names = sorted(known) if message.topics is None else [t.name for t in message.topics]
    topics = [
        topic_type(
            error_code=E.NONE if name in known else E.UNKNOWN_TOPIC_OR_PARTITION,
            name=name,
            partitions=[
                topic_type.MetadataResponsePartition(
                    partition_index=n,
                    leader_id=cluster.leaders[name, n],
                    error_code=E.NONE if cluster.leaders[name, n] >= 0 else E.LEADER_NOT_AVAILABLE,
                )
                for n in known.get(name, ())
            ],
        )
        for name in names
    ]
    brokers = [
        response.MetadataResponseBroker(node_id=n, host="h", port=9000 + n) for n in cluster.nodes
    ]
    return response(brokers=brokers, cluster_id="c", controller_id=1, topics=topics)


def _find_coordinator(_cluster, message, _version):
    response = _response(ApiKey.FIND_COORDINATOR)
    found = [
        response.Coordinator(key=key, node_id=COORDINATOR_NODE, host="h", port=9001)
        for key in message.coordinator_keys or ()
    ]
    return response(node_id=COORDINATOR_NODE, host="h", port=9001, coordinators=found)


def _init_producer_id(cluster, message, _version):
    code, producer_id, epoch = cluster.state.init(
        message.transactional_id, message.producer_id, message.producer_epoch
    )
    return _response(ApiKey.INIT_PRODUCER_ID)(
        error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


def _add_partitions(cluster, message, _version):
    name = message.v3_and_below_transactional_id
    code = cluster.state.check(
        name, message.v3_and_below_producer_id, message.v3_and_below_producer_epoch
    )
    partitions = {(t.name, p) for t in message.v3_and_below_topics for p in t.partitions}
    if code == E.NONE:
        cluster.state.add(name, partitions, set())
    return _added(message, code)


def _added(message, code):
    response = _response(ApiKey.ADD_PARTITIONS_TO_TXN)
    topic_type = response.AddPartitionsToTxnTopicResult
    return response(
        results_by_topic_v3_and_below=[
            topic_type(
                name=t.name,
                results_by_partition=[
                    topic_type.AddPartitionsToTxnPartitionResult(
                        partition_index=p, partition_error_code=code
                    )
                    for p in t.partitions
                ],
            )
            for t in message.v3_and_below_topics
        ]
    )


def _add_offsets(cluster, message, _version):
    code = cluster.state.check(
        message.transactional_id, message.producer_id, message.producer_epoch
    )
    if code == E.NONE:
        cluster.state.add(message.transactional_id, set(), {message.group_id})
    return _response(ApiKey.ADD_OFFSETS_TO_TXN)(error_code=code)


def _txn_offset_commit(cluster, message, version):
    state, name = cluster.state, message.transactional_id
    code = state.check_offsets(name, message.producer_id, message.producer_epoch, message.group_id)
    if code == E.NONE and version >= 5:
        state.add(name, set(), {message.group_id})
    elif code == E.NONE and message.group_id not in state.transactions[name].groups:
        code = E.INVALID_TXN_STATE
    if code == E.NONE:
        for topic in message.topics:
            for p in topic.partitions:
                partition = (topic.name, p.partition_index)
                if _is_known(cluster, partition):
                    value = (p.committed_offset, p.committed_metadata or "")
                    state.pending[name][message.group_id, partition] = value
    unknown_to = cluster if code == E.NONE else None
    return _offsets_answer(
        ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommitResponse", message, code, unknown_to
    )


def _offset_commit(cluster, message, _version):
    for topic in message.topics:
        for p in topic.partitions:
            cluster.state.offsets[message.group_id][topic.name, p.partition_index] = (
                p.committed_offset,
                p.committed_metadata or "",
            )
    return _offsets_answer(ApiKey.OFFSET_COMMIT, "OffsetCommitResponse", message, E.NONE)


def _offsets_answer(api_key, name, message, code, unknown_to=None):
    """One code for all; UNKNOWN_TOPIC_OR_PARTITION for partitions `unknown_to` a cluster."""
    response = _response(api_key)
    topic_type = getattr(response, f"{name}Topic")
    partition_type = getattr(topic_type, f"{name}Partition")
    return response(
        topics=[
            topic_type(
                name=t.name,
                partitions=[
                    partition_type(
                        partition_index=p.partition_index,
                        error_code=code
                        if _is_known(unknown_to, (t.name, p.partition_index))
                        else E.UNKNOWN_TOPIC_OR_PARTITION,
                    )
                    for p in t.partitions
                ],
            )
            for t in message.topics
        ]
    )


def _is_known(cluster, partition):
    return cluster is None or partition[0] in {topic for topic, _ in cluster.leaders}


def _end_txn(cluster, message, version):
    code = cluster.state.end(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        committed=message.committed,
        v2=version >= 5,
    )
    response = _response(ApiKey.END_TXN)(error_code=code)
    if code == E.NONE and version >= 5:
        txn = cluster.state.transactions[message.transactional_id]
        response.producer_id, response.producer_epoch = txn.producer_id, txn.producer_epoch
    return response


def _produce(cluster, message, version):
    def code_of(topic: str, entry: Any) -> int:
        if cluster.leaders.get((topic, entry.index), -1) != cluster.asked[-1].node:
            return E.NOT_LEADER_OR_FOLLOWER
        return cluster.state.append(
            message.transactional_id,
            (topic, entry.index),
            bytes(entry.records),
            implicit=version >= 12,
        )

    return _produced(message, code_of)


def _produced(message, code_of):
    response = _response(ApiKey.PRODUCE)
    topic_type = response.TopicProduceResponse
    return response(
        responses=[
            topic_type(
                name=t.name,
                partition_responses=[
                    topic_type.PartitionProduceResponse(
                        index=p.index, error_code=code_of(t.name, p), base_offset=0
                    )
                    for p in t.partition_data
                ],
            )
            for t in message.topic_data
        ]
    )


def _offset_fetch(cluster, message, version):
    """As Kafka: a whole group's answer is silent about a first offset that is undecided."""
    group = message.groups[0] if version >= 8 else message
    offsets = cluster.state.offsets[group.group_id]
    named = {(t.name, p) for t in group.topics or () for p in t.partition_indexes}
    asked = named or set(offsets)
    pending = {p for v in cluster.state.pending.values() for g, p in v if g == group.group_id}
    if asked & pending and message.require_stable:
        undecided = dict.fromkeys(sorted(asked & pending), (-1, ""))
        return _fetched(group.group_id, undecided, E.UNSTABLE_OFFSET_COMMIT, version)
    found = {p: offsets.get(p, (-1, "")) for p in sorted(asked)}
    return _fetched(group.group_id, found, E.NONE, version)


def _fetched(group_id, offsets, code, version):
    response = _response(ApiKey.OFFSET_FETCH)
    suffix = "s" if version >= 8 else ""
    owner = response.OffsetFetchResponseGroup if version >= 8 else response
    topic_type = getattr(owner, f"OffsetFetchResponseTopic{suffix}")
    partition_type = getattr(topic_type, f"OffsetFetchResponsePartition{suffix}")
    topics = [
        topic_type(
            name=topic,
            partitions=[
                partition_type(
                    partition_index=number, committed_offset=o, metadata=m, error_code=code
                )
            ],
        )
        for (topic, number), (o, m) in offsets.items()
    ]
    if version < 8:
        return response(topics=topics, error_code=E.NONE)
    group_type = response.OffsetFetchResponseGroup
    return response(groups=[group_type(group_id=group_id, topics=topics)])


def _list_offsets(_cluster, message, _version):
    """Logs are not trimmed: the earliest offset is 0. Nothing here asks for another one."""
    response = _response(ApiKey.LIST_OFFSETS)
    topic_type = response.ListOffsetsTopicResponse
    return response(
        topics=[
            topic_type(
                name=t.name,
                partitions=[
                    topic_type.ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, offset=0, timestamp=-1
                    )
                    for p in t.partitions
                ],
            )
            for t in message.topics
        ]
    )


def _describe_configs(cluster, message, _version):
    """Of a broker, by the names asked for; what is unknown is left out, as Kafka does."""
    return _response(ApiKey.DESCRIBE_CONFIGS)(
        results=[_described(asked, E.NONE, cluster.broker_configs) for asked in message.resources]
    )


def _described(asked, code, values):
    result = _response(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResult
    names = values if asked.configuration_keys is None else asked.configuration_keys
    return result(
        error_code=code,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[
            result.DescribeConfigsResourceResult(name=name, value=values[name])
            for name in names
            if name in values
        ],
    )


_ANSWERS = {
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.METADATA: _metadata,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.END_TXN: _end_txn,
    ApiKey.PRODUCE: _produce,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
}


def error(api_key: ApiKey, message: Any, version: int, code: int) -> Any:
    """The answer that says `code`, wherever this request's answers carry codes."""
    match api_key:
        case ApiKey.PRODUCE:
            return _produced(message, lambda _topic, _entry: code)
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return _added(message, code)
        case ApiKey.TXN_OFFSET_COMMIT:
            return _offsets_answer(api_key, "TxnOffsetCommitResponse", message, code)
        case ApiKey.OFFSET_COMMIT:
            return _offsets_answer(api_key, "OffsetCommitResponse", message, code)
        case ApiKey.OFFSET_FETCH:
            group_id = message.groups[0].group_id if version >= 8 else message.group_id
            return _fetched(group_id, {("out", 0): (-1, "")}, code, version)
        case ApiKey.FIND_COORDINATOR:
            response = _response(api_key)
            keys = message.coordinator_keys or ()
            found = [
                response.Coordinator(key=k, node_id=-1, host="", port=-1, error_code=code)
                for k in keys
            ]
            return response(error_code=code, node_id=-1, host="", port=-1, coordinators=found)
        case ApiKey.DESCRIBE_CONFIGS:
            refusals = [_described(asked, code, {}) for asked in message.resources]
            return _response(api_key)(results=refusals)
        case ApiKey.DELETE_GROUPS:
            result = _response(api_key).DeletableGroupResult
            groups = message.groups_names
            return _response(api_key)(results=[result(group_id=g, error_code=code) for g in groups])
        case ApiKey.CREATE_TOPICS:
            result = _response(api_key).CreatableTopicResult
            topics = [result(name=t.name, error_code=code) for t in message.topics]
            return _response(api_key)(topics=topics)
        case _:
            return _response(api_key)(error_code=code)
