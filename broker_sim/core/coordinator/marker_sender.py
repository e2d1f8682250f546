"""Brings the markers of a transaction to the leaders of its partitions, here or by WriteTxnMarkers.

Source: Kafka's `TransactionMarkerChannelManager`. When to ask again is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.coordinator.partition_writer import MarkerWriter, PartitionMarker
from broker_sim.core.coordinator.peer_batches import PeerBatches
from broker_sim.core.effects import Effects
from broker_sim.core.peers import Peers
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import MarkerType, TransactionMarker
from txnlog_kafka.wire.topic_partition import TopicPartition

MARKERS_TIMER = "write-txn-markers"
VERSION = 2

_Request = APIS[ApiKey.WRITE_TXN_MARKERS].request
_Marker = _Request.WritableTxnMarker


@dataclass(frozen=True, slots=True)
class _Sent:
    """On its way to another broker."""

    what: PartitionMarker
    reply: Reply[ErrorCode]


class MarkerSender:
    """See the module."""

    def __init__(self, image: ClusterImage, writer: MarkerWriter, peers: Peers) -> None:
        self._image = image
        self._batches: PeerBatches[_Sent] = PeerBatches(
            MARKERS_TIMER, peers, VERSION, _request, _take_answer
        )
        self.on_timer = self._batches.on_timer
        self.append_here = writer.append_marker
        """Append a marker if this broker leads the partition, else say so."""

    def append_marker(
        self, what: PartitionMarker, reply: Reply[ErrorCode], effects: Effects
    ) -> None:
        """Have the leader append a marker; `reply` is called when it is committed.

        UNKNOWN_TOPIC_OR_PARTITION: the metadata has no such partition (any more). Whatever else
        may pass is to be asked again, an unknown leader and a lost connection too; see `markers`.
        """
        leader = self._leader(what.place)
        if leader in (None, self._image.node_id):
            self.append_here(what, reply, effects)
        elif leader not in self._image.brokers:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)
        else:
            self._batches.add(leader, _Sent(what, reply), effects)

    def on_leader_change(self, place: TopicPartition, effects: Effects) -> None:
        """Answer the markers that have not left: their partition has another leader now."""
        for sent in self._batches.withdraw(lambda each: each.what.place == place):
            sent.reply(ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)

    def _leader(self, place: TopicPartition) -> int | None:
        """Return the leader, None where this broker is alone or the partition does not exist."""
        topic = self._image.topics.get(place.topic)
        if topic is None or not place.partition < len(topic.partitions):
            return None
        return topic.partitions[place.partition].leader


def _request(batch: Sequence[_Sent]) -> Message:
    """Build the request: an entry for each decision, with its partitions."""
    decisions: dict[tuple[TransactionMarker, int], dict[str, list[int]]] = {}
    for what in (sent.what for sent in batch):
        topics = decisions.setdefault((what.marker, what.transaction_version), {})
        topics.setdefault(what.place.topic, []).append(what.place.partition)
    return _Request(
        markers=[
            _Marker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.marker_type is MarkerType.COMMIT,
                topics=[
                    _Marker.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=transaction_version,
            )
            for (marker, transaction_version), topics in decisions.items()
        ]
    )


def _take_answer(batch: Sequence[_Sent], answer: Message | None, effects: Effects) -> None:
    errors = {} if answer is None else _errors(answer)
    for sent in batch:
        key = sent.what.marker.producer_id, sent.what.place
        error = errors.get(key, ErrorCode.NETWORK_EXCEPTION)
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A leader that is behind says so; that a topic is gone only the metadata can say.
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        sent.reply(error, effects)


def _errors(answer: Any) -> Mapping[tuple[int, TopicPartition], ErrorCode]:
    return {
        (entry.producer_id, TopicPartition(topic.name, each.partition_index)): ErrorCode(
            each.error_code
        )
        for entry in answer.markers
        for topic in entry.topics
        for each in topic.partitions
    }
