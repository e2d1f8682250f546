"""A follower's half of replication: fetch from the leaders, append, truncate what diverged.

For each leader one request is under way, with all partitions that are followed there. Each fetch
says where this log ends and in which epoch its last batch is; a leader that had another history
there answers where the epochs part, and the log is truncated to the common point before it goes on
(KIP-101, KIP-279, and KIP-595 for the form). Never to the high watermark, which lags behind what is
committed.

Sources: Kafka's `AbstractFetcherThread`, `ReplicaFetcherThread`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.log import PartitionLog
from broker_sim.core.peers import Peers
from broker_sim.core.replica.leader import UNKNOWN
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import CorruptBatch
from txnlog_kafka.wire.topic_partition import TopicPartition

REPLICA_FETCH_TIMER = "replica-fetch"
FETCH_VERSION = 17
LIST_OFFSETS_VERSION = 9
EARLIEST_LOCAL = -4
NO_SESSION_EPOCH = -1
"""Whole requests, no fetch session (KIP-227)."""
NO_HIGH_WATERMARK = (1 << 63) - 1
"""The default of the field: none is known."""

_Fetch = APIS[ApiKey.FETCH].request
_ListOffsets = APIS[ApiKey.LIST_OFFSETS].request


@dataclass(frozen=True, slots=True)
class FollowerActions:
    """What the fetchers do to the logs of this broker, each in the step of the answer."""

    append: Callable[[PartitionLog, bytes, Effects], ErrorCode]
    truncate: Callable[[PartitionLog, int, Effects], None]
    begin_at: Callable[[PartitionLog, int, Effects], None]
    """Empty, from the offset on."""
    take_offsets: Callable[[PartitionLog, int, int, Effects], None]
    """The leader's high watermark and log start."""


@dataclass(slots=True)
class _Followed:
    """One partition that is fetched from a leader."""

    log: PartitionLog
    leader_epoch: int
    delayed_until_ms: int | None = None


@dataclass(slots=True)
class _Fetcher:
    """What is fetched from one leader. `asked` is the request under way: log end and epoch."""

    leader: int
    partitions: dict[TopicPartition, _Followed] = field(default_factory=dict)
    asked: dict[TopicPartition, tuple[int, int]] | None = None
    delayed_until_ms: int | None = None

    @property
    def timer_key(self) -> TimerKey:
        return (REPLICA_FETCH_TIMER, str(self.leader))


class ReplicaFetchers:
    """All fetchers of this broker, by leader."""

    def __init__(
        self, config: BrokerConfig, image: ClusterImage, peers: Peers, actions: FollowerActions
    ) -> None:
        self._config = config
        self._image = image
        self._peers = peers
        self._actions = actions
        self._fetchers: dict[int, _Fetcher] = {}

    def follow(self, log: PartitionLog, leader: int, leader_epoch: int, effects: Effects) -> None:
        """Fetch the partition from this leader from here on, and from no other."""
        name = TopicPartition(log.topic, log.partition)
        fetcher = self._fetchers.setdefault(leader, _Fetcher(leader))
        known = fetcher.partitions.get(name)
        if known is not None and (known.log, known.leader_epoch) == (log, leader_epoch):
            return
        self.forget(name)
        fetcher.partitions[name] = _Followed(log, leader_epoch)
        self._fetch(fetcher, effects)

    def forget(self, name: TopicPartition) -> None:
        """The partition is not fetched any more; an answer that is under way is ignored."""
        for fetcher in self._fetchers.values():
            fetcher.partitions.pop(name, None)

    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """A time to wait after an error is over."""
        fetcher = self._fetchers.get(int(key[1]))
        if fetcher is None:
            return
        now_ms = effects.monotonic_ms
        if fetcher.delayed_until_ms is not None and fetcher.delayed_until_ms <= now_ms:
            fetcher.delayed_until_ms = None
        left = []
        for followed in fetcher.partitions.values():
            until_ms = followed.delayed_until_ms
            if until_ms is not None and until_ms > now_ms:
                left.append(until_ms)
            else:
                followed.delayed_until_ms = None
        self._fetch(fetcher, effects)
        if left:
            effects.set_timer(*fetcher.timer_key, after_ms=min(left) - now_ms)

    # ------------------------------------------------------------------ asking

    def _fetch(self, fetcher: _Fetcher, effects: Effects) -> None:
        """Ask the leader, unless it is being asked, or there is nothing to ask for now."""
        if fetcher.asked is not None or fetcher.delayed_until_ms is not None:
            return
        ready = {
            name: followed
            for name, followed in fetcher.partitions.items()
            if followed.delayed_until_ms is None
        }
        if not ready:
            return
        asked = {
            name: (followed.log.log_end_offset, followed.leader_epoch)
            for name, followed in ready.items()
        }
        fetcher.asked = asked
        on_answer = partial(self._on_answer, fetcher)
        request = self._request(ready)
        self._peers.send(fetcher.leader, request, FETCH_VERSION, on_answer, effects)

    def _request(self, ready: dict[TopicPartition, _Followed]) -> Message:
        config = self._config
        topics: dict[bytes, list[Any]] = {}
        for followed in ready.values():
            log = followed.log
            partition_bytes = config.integer("replica.fetch.max.bytes")
            topics.setdefault(log.topic_id, []).append(
                _Fetch.FetchTopic.FetchPartition(
                    partition=log.partition,
                    current_leader_epoch=followed.leader_epoch,
                    fetch_offset=log.log_end_offset,
                    last_fetched_epoch=log.latest_epoch,
                    log_start_offset=log.log_start_offset,
                    # An append is not larger than a segment.
                    partition_max_bytes=min(partition_bytes, log.config.segment_bytes),
                    replica_directory_id=None,
                    high_watermark=NO_HIGH_WATERMARK,
                )
            )
        image = self._image
        registered = image.brokers.get(image.node_id)
        return _Fetch(
            # Without an epoch, before it is registered, it may not join an ISR (KIP-903).
            replica_state=_Fetch.ReplicaState(
                replica_id=image.node_id,
                replica_epoch=UNKNOWN if registered is None else registered.epoch,
            ),
            max_wait_ms=config.integer("replica.fetch.wait.max.ms"),
            min_bytes=config.integer("replica.fetch.min.bytes"),
            max_bytes=config.integer("replica.fetch.response.max.bytes"),
            isolation_level=0,
            session_id=0,
            session_epoch=NO_SESSION_EPOCH,
            topics=[
                _Fetch.FetchTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            forgotten_topics_data=[],
            rack_id="",
        )

    def _delay(self, fetcher: _Fetcher, held: _Fetcher | _Followed, effects: Effects) -> None:
        """Leave it alone for replica.fetch.backoff.ms."""
        after_ms = self._config.integer("replica.fetch.backoff.ms")
        held.delayed_until_ms = effects.monotonic_ms + after_ms
        effects.set_timer(*fetcher.timer_key, after_ms=after_ms)

    # ------------------------------------------------------------------ the answer

    def _on_answer(self, fetcher: _Fetcher, answer: Message | None, effects: Effects) -> None:
        """Of what was asked; what changed its leader or its end meanwhile is asked again."""
        asked, fetcher.asked = fetcher.asked or {}, None
        if answer is None or answer.error_code != ErrorCode.NONE:
            self._delay(fetcher, fetcher, effects)
            return
        by_id = {
            (followed.log.topic_id, followed.log.partition): (name, followed)
            for name, followed in fetcher.partitions.items()
        }
        for topic in answer.responses:
            for entry in topic.partitions:
                found = by_id.get((topic.topic_id.bytes, entry.partition_index))
                if found is None:
                    continue
                name, followed = found
                if asked.get(name) != (followed.log.log_end_offset, followed.leader_epoch):
                    continue
                if entry.records:  # a partition that had something comes last in the next request
                    fetcher.partitions[name] = fetcher.partitions.pop(name)
                if not self._take(fetcher, followed, entry, effects):
                    self._delay(fetcher, followed, effects)
        self._fetch(fetcher, effects)

    def _take(self, fetcher: _Fetcher, followed: _Followed, entry: Any, effects: Effects) -> bool:
        """Carry out what the leader says of one partition; False to ask again later only."""
        log, actions = followed.log, self._actions
        error = entry.error_code
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._ask_log_start(fetcher, followed, effects)
            return False
        if error == ErrorCode.NONE and _is_diverging(entry):
            at = entry.diverging_epoch
            return self._truncate(log, at.epoch, at.end_offset, effects)
        if error == ErrorCode.NONE and entry.records:
            error = actions.append(log, bytes(entry.records), effects)
        if error != ErrorCode.NONE:
            effects.trace("replica-fetch-failed", log=log.directory, error=ErrorCode(error).name)
            return False
        actions.take_offsets(log, entry.high_watermark, entry.log_start_offset, effects)
        return True

    def _truncate(self, log: PartitionLog, epoch: int, end_offset: int, effects: Effects) -> bool:
        """To the end of the latest epoch that both know, or what is nearest to it so far: the next
        answer says whether there is more to do (Kafka's `getOffsetTruncationState`)."""
        own_epoch, own_end = log.end_offset_for_epoch(epoch)
        if own_epoch >= 0:
            end_offset = min(end_offset, own_end)
        before = log.log_end_offset
        end_offset = max(0, min(end_offset, before))
        try:
            self._actions.truncate(log, end_offset, effects)
        except CorruptBatch as error:
            effects.trace("damaged-file", reason=str(error))
            return False
        return log.log_end_offset < before

    def _ask_log_start(self, fetcher: _Fetcher, followed: _Followed, effects: Effects) -> None:
        """The leader's log begins above this one's end: where, says ListOffsets."""
        log, leader_epoch = followed.log, followed.leader_epoch
        name = TopicPartition(log.topic, log.partition)
        topic_struct = _ListOffsets.ListOffsetsTopic
        request = _ListOffsets(
            replica_id=self._image.node_id,
            isolation_level=0,
            topics=[
                topic_struct(
                    name=log.topic,
                    partitions=[
                        topic_struct.ListOffsetsPartition(
                            partition_index=log.partition,
                            current_leader_epoch=leader_epoch,
                            timestamp=EARLIEST_LOCAL,
                        )
                    ],
                )
            ],
        )

        def on_answer(answer: Message | None, effects: Effects) -> None:
            held = fetcher.partitions.get(name)
            if answer is None or held is not followed:
                return
            for entry in (p for topic in answer.topics for p in topic.partitions):
                if entry.error_code == ErrorCode.NONE and entry.offset > log.log_end_offset:
                    self._actions.begin_at(log, entry.offset, effects)

        self._peers.send(fetcher.leader, request, LIST_OFFSETS_VERSION, on_answer, effects)


def _is_diverging(entry: Any) -> bool:
    """The leader has another history below the offset that was asked for."""
    at = entry.diverging_epoch
    return at is not None and at.end_offset >= 0
