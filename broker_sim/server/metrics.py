"""Figures of a running broker, by Kafka's own names, for Prometheus.

Kafka's metrics get these names from the JMX exporter with its example rules for Kafka:
`kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=t` is
`kafka_server_brokertopicmetrics_messagesin_total{topic="t"}`, and the broker's total has no topic.

This module counts outside the core, from its inputs and outputs. An append to a log file counts as
in, markers and the coordinators' records too, as in Kafka, whose `ReplicaManager.appendToLocalLog`
counts every append of a leader. The appends of a follower, and the bytes sent to it, are bytes of
replication, which have no topic. Gauges are computed when they are requested. Counters begin at 0
with each start of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from broker_sim.apis import AnyApiKey
from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.effects import Append, Input, Rename, Request, Respond, Step
from broker_sim.core.log import DELETED_SUFFIX, PartitionLog
from broker_sim.core.membership.cluster_metadata import UNCLEAN_ELECTION
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import iter_batches
from txnlog_kafka.wire.topic_partition import METADATA_TOPIC

TOPIC_METRICS = "kafka_server_brokertopicmetrics"
CONTROLLER_METRICS = "kafka_controller_controllerstats"
_Sample = tuple[dict[str, str], float]


class BrokerMetrics:
    """Counters of steps; one object a broker process."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[AnyApiKey, int]] = Counter()
        self._by_topic: dict[str, Counter[str]] = {
            name: Counter() for name in ("messagesin", "bytesin", "bytesout")
        }
        self._of_gone_topics: Counter[str] = Counter()
        """Figures of topics that are gone from this broker, for its total, as in Kafka."""
        self._totals: Counter[str] = Counter(
            dict.fromkeys(
                (
                    "totalproducerequests", "failedproducerequests",
                    "totalfetchrequests", "failedfetchrequests",
                    "replicationbytesin", "replicationbytesout",
                ),
                0,
            )
        )  # fmt: skip
        self._unclean_elections = 0
        """Number of unclean elections that this broker has read of. Each broker may be the
        controller; each of Kafka's controllers counts them."""

    def count(self, item: Input, step: Step, parts: BrokerParts | None = None) -> None:
        """Count an input that was carried out; `parts` know which partitions the broker leads."""
        if isinstance(item, Request):
            self._requests[item.api_key, item.api_version] += 1
            if item.api_key is ApiKey.PRODUCE:
                self._count_partitions("totalproducerequests", item.message.topic_data)
            elif item.api_key is ApiKey.FETCH:
                self._count_partitions("totalfetchrequests", item.message.topics)
        for operation in step.storage:
            if isinstance(operation, Append) and operation.path.endswith(".log"):
                self._count_append(operation, parts)
            elif isinstance(operation, Rename) and operation.new_path.endswith(DELETED_SUFFIX):
                self._forget_topic(operation.path.rpartition("-")[0], parts)
        for response in step.responses:
            if isinstance(response, Respond):
                self._count_response(response)
        self._unclean_elections += sum(each.kind == UNCLEAN_ELECTION for each in step.traces)

    def text(self, parts: BrokerParts | None, flush_count: int) -> str:
        """Return the figures in Prometheus' text format; `parts` is None while no logs are open."""
        lines: list[str] = []
        for name, kind, samples in self._all(parts, flush_count):
            lines.append(f"# TYPE {name} {kind}")
            for labels, value in samples:
                shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
                lines.append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ counting

    def _count_partitions(self, name: str, topics: Iterable[Any]) -> None:
        for topic in topics:
            entries = topic.partition_data if hasattr(topic, "partition_data") else topic.partitions
            self._totals[name] += len(entries)

    def _count_append(self, operation: Append, parts: BrokerParts | None) -> None:
        topic, _, number = operation.path.partition("/")[0].rpartition("-")
        if topic in ("", METADATA_TOPIC):
            return
        log = None if parts is None else parts.logs.get(topic, int(number))
        if parts is not None and log is not None and not _is_led(parts, log):
            self._totals["replicationbytesin"] += len(operation.data)
            return
        records = sum(header.record_count for header, _ in iter_batches(operation.data))
        self._by_topic["messagesin"][topic] += records
        self._by_topic["bytesin"][topic] += len(operation.data)

    def _forget_topic(self, topic: str, parts: BrokerParts | None) -> None:
        """Note that a partition of the topic is gone; the figures go with its last partition."""
        if parts is not None and any(place.topic == topic for place, _ in parts.logs.items()):
            return
        for name, by_topic in self._by_topic.items():
            self._of_gone_topics[name] += by_topic.pop(topic, 0)

    def _count_response(self, response: Respond) -> None:
        for field in response.records:
            for piece in field.slices:
                if response.for_replica:
                    self._totals["replicationbytesout"] += piece.length
                    continue
                topic = piece.path.partition("/")[0].rpartition("-")[0]
                self._by_topic["bytesout"][topic] += piece.length
        if response.api_key is ApiKey.PRODUCE:
            failed = (
                p.error_code for t in response.message.responses for p in t.partition_responses
            )
            self._totals["failedproducerequests"] += sum(map(bool, failed))
        elif response.api_key is ApiKey.FETCH:
            failed = (p.error_code for t in response.message.responses for p in t.partitions)
            self._totals["failedfetchrequests"] += sum(map(bool, failed))

    # ------------------------------------------------------------------ showing

    def _all(
        self, parts: BrokerParts | None, flush_count: int
    ) -> Iterator[tuple[str, str, list[_Sample]]]:
        for name, by_topic in self._by_topic.items():
            samples: list[_Sample] = [({}, by_topic.total() + self._of_gone_topics[name])]
            samples += [({"topic": topic}, count) for topic, count in sorted(by_topic.items())]
            yield f"{TOPIC_METRICS}_{name}_total", "counter", samples
        for name, count in self._totals.items():
            yield f"{TOPIC_METRICS}_{name}_total", "counter", [({}, count)]
        requests: list[_Sample] = [
            ({"request": _api_name(api), "version": str(version)}, count)
            for (api, version), count in sorted(self._requests.items())
        ]
        yield "kafka_network_requestmetrics_requests_total", "counter", requests
        flushes: list[_Sample] = [({}, flush_count)]
        unclean: list[_Sample] = [({}, self._unclean_elections)]
        yield f"{CONTROLLER_METRICS}_uncleanleaderelections_total", "counter", unclean
        yield "kafka_log_logflushstats_logflushrateandtimems_count", "counter", flushes
        if parts is not None:
            yield from _gauges(parts)


def _gauges(parts: BrokerParts) -> Iterator[tuple[str, str, list[_Sample]]]:
    logs, topics = sorted(parts.logs.items()), parts.image.topics.values()
    single = {
        "kafka_server_replicamanager_partitioncount": len(logs),
        "kafka_server_replicamanager_leadercount": sum(_is_led(parts, log) for _, log in logs),
        "kafka_server_replicamanager_underreplicatedpartitions": sum(
            _is_under_replicated(parts, log) for _, log in logs
        ),
        "kafka_server_replicamanager_produceridcount": sum(len(log.producers()) for _, log in logs),
        "kafka_controller_kafkacontroller_activecontrollercount": int(
            parts.membership.controller_id == parts.node_id
        ),
        "kafka_controller_kafkacontroller_globaltopiccount": len(parts.image.topics),
        "kafka_controller_kafkacontroller_globalpartitioncount": sum(
            topic.partition_count for topic in topics
        ),
        "kafka_controller_kafkacontroller_offlinepartitionscount": sum(
            held.leader == NO_LEADER for topic in topics for held in topic.partitions
        ),
        "kafka_coordinator_group_groupmetadatamanager_numgroups": len(
            parts.groups.list_groups().groups
        ),
    }
    for name, value in single.items():
        yield name, "gauge", [({}, value)]
    names = [{"partition": str(p.partition), "topic": p.topic} for p, _ in logs]
    for name, values in (
        ("logstartoffset", [log.log_start_offset for _, log in logs]),
        ("logendoffset", [log.log_end_offset for _, log in logs]),
        ("size", [log.size_bytes for _, log in logs]),
    ):
        yield f"kafka_log_log_{name}", "gauge", list(zip(names, values, strict=True))
    held_back = [log.high_watermark - log.last_stable_offset for _, log in logs]
    name = "kafka_cluster_partition_laststableoffsetlag"
    yield name, "gauge", list(zip(names, held_back, strict=True))


def _is_led(parts: BrokerParts, log: PartitionLog) -> bool:
    return parts.replicas.partition(log).check_leader(-1) is ErrorCode.NONE


def _is_under_replicated(parts: BrokerParts, log: PartitionLog) -> bool:
    leader = parts.replicas.partition(log).leader
    held = None if leader is None else leader.registration
    return held is not None and len(held.isr) < len(held.replicas)


def _api_name(api: AnyApiKey) -> str:
    """Return Kafka's name of an API, such as InitProducerId."""
    return "".join(word.capitalize() for word in api.name.split("_"))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
