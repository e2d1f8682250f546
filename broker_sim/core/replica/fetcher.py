"""A follower's half of replication: fetch from the leaders, append, truncate what diverged.

For each leader one request is under way, of a fetch session with all partitions that are followed
there (`follower_session.py`). Each fetch says where this log ends and in which epoch its last batch
is; a leader that had another history there answers where the epochs part, and the log is truncated
to the common point before it goes on (KIP-101, KIP-279, and KIP-595 for the form). Never to the
high watermark, which lags behind what is committed.

Sources: Kafka's `AbstractFetcherThread`, `ReplicaFetcherThread`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.log import PartitionLog
from broker_sim.core.peers import Peers
from broker_sim.core.replica.fetch_session import UNKNOWN
from broker_sim.core.replica.follower_session import FetchParameters, FollowerSession, Key
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import CorruptBatch
from txnlog_kafka.wire.topic_partition import TopicPartition

REPLICA_FETCH_TIMER = "replica-fetch"
FETCH_VERSION = 17
LIST_OFFSETS_VERSION = 9
EARLIEST_LOCAL = -4
SESSION_ERRORS = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
"""The leader asks for a whole request."""
NO_HIGH_WATERMARK = (1 << 63) - 1
"""The default of the field: none is known."""

_Fetch = APIS[ApiKey.FETCH].request
_ListOffsets = APIS[ApiKey.LIST_OFFSETS].request


@dataclass(frozen=True, slots=True)
class FollowerActions:
    """Actions of the fetchers on the logs of this broker, each in the step of the answer."""

    append: Callable[[PartitionLog, bytes, Effects], ErrorCode]
    truncate: Callable[[PartitionLog, int, Effects], None]
    begin_at: Callable[[PartitionLog, int, Effects], None]
    """Empty, from the offset on."""
    take_offsets: Callable[[PartitionLog, int, int, Effects], None]
    """The leader's high watermark and log start."""


@dataclass(slots=True)
class _Followed:
    """A partition that is fetched from a leader."""

    log: PartitionLog
    leader_epoch: int
    delayed_until_ms: int | None = None

    @property
    def key(self) -> Key:
        return self.log.topic_id, self.log.partition


@dataclass(slots=True)
class _Fetcher:
    """Fetcher of all partitions that are followed at the same leader."""

    leader: int
    partitions: dict[TopicPartition, _Followed] = field(default_factory=dict)
    by_key: dict[Key, _Followed] = field(default_factory=dict)
    session: FollowerSession = field(default_factory=FollowerSession)
    is_asking: bool = False
    """A request is under way."""
    delayed_until_ms: int | None = None

    @property
    def timer_key(self) -> TimerKey:
        return (REPLICA_FETCH_TIMER, str(self.leader))


class ReplicaFetchers:
    """Fetchers of this broker, by leader."""

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
        name = log.name
        fetcher = self._fetchers.setdefault(leader, _Fetcher(leader))
        known = fetcher.partitions.get(name)
        if known is not None and (known.log, known.leader_epoch) == (log, leader_epoch):
            return
        self.forget(name)
        followed = fetcher.partitions[name] = _Followed(log, leader_epoch)
        fetcher.by_key[followed.key] = followed
        self._want_partition(fetcher, followed)
        self._fetch_partitions(fetcher, effects)

    def forget(self, name: TopicPartition) -> None:
        """The partition is not fetched any more; an answer that is under way is ignored."""
        for fetcher in self._fetchers.values():
            followed = fetcher.partitions.pop(name, None)
            if followed is not None:
                del fetcher.by_key[followed.key]
                fetcher.session.forget(followed.key)

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
            if until_ms is None:
                continue
            if until_ms > now_ms:
                left.append(until_ms)
            else:
                followed.delayed_until_ms = None
                self._want_partition(fetcher, followed)
        self._fetch_partitions(fetcher, effects)
        if left:
            effects.set_timer(*fetcher.timer_key, after_ms=min(left) - now_ms)

    # ------------------------------------------------------------------ asking

    def _want_partition(self, fetcher: _Fetcher, followed: _Followed) -> None:
        """Ask for the partition as its log is now."""
        log = followed.log
        # An append is not larger than a segment.
        max_bytes = min(self._config.integer("replica.fetch.max.bytes"), log.config.segment_bytes)
        position = FetchParameters(
            log.log_end_offset,
            followed.leader_epoch,
            log.latest_epoch,
            log.log_start_offset,
            max_bytes,
        )
        fetcher.session.want(followed.key, position)

    def _fetch_partitions(self, fetcher: _Fetcher, effects: Effects) -> None:
        """Ask the leader, unless it is being asked, or there is nothing to ask for now."""
        if fetcher.is_asking or fetcher.delayed_until_ms is not None or fetcher.session.is_empty:
            return
        fetcher.is_asking = True
        on_answer = partial(self._on_answer, fetcher)
        request = self._request(fetcher.session)
        self._peers.send(fetcher.leader, request, FETCH_VERSION, on_answer, effects)

    def _request(self, session: FollowerSession) -> Message:
        config, image = self._config, self._image
        named, forgotten = session.next_request()
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
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=_topics(named),
            forgotten_topics_data=[
                _Fetch.ForgottenTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=[number])
                for topic_id, number in forgotten
            ],
            rack_id="",
        )

    def _delay_partition(
        self, fetcher: _Fetcher, held: _Fetcher | _Followed, effects: Effects
    ) -> None:
        """Leave it alone for replica.fetch.backoff.ms."""
        after_ms = self._config.integer("replica.fetch.backoff.ms")
        held.delayed_until_ms = effects.monotonic_ms + after_ms
        effects.set_timer(*fetcher.timer_key, after_ms=after_ms)
        if isinstance(held, _Followed):
            fetcher.session.forget(held.key)

    # ------------------------------------------------------------------ the answer

    def _on_answer(self, fetcher: _Fetcher, answer: Message | None, effects: Effects) -> None:
        """Take an answer; fetch a partition once more if its leader or end changed meanwhile."""
        fetcher.is_asking = False
        error = None if answer is None else ErrorCode(answer.error_code)
        if answer is None or error is not ErrorCode.NONE:
            fetcher.session.on_failed(error)
            if error not in SESSION_ERRORS:
                self._delay_partition(fetcher, fetcher, effects)
            self._fetch_partitions(fetcher, effects)
            return
        fetcher.session.on_answer(answer.session_id)
        for topic in answer.responses:
            for entry in topic.partitions:
                followed = fetcher.by_key.get((topic.topic_id.bytes, entry.partition_index))
                asked = None if followed is None else fetcher.session.asked(followed.key)
                if followed is None or asked is None:
                    continue
                held = (followed.log.log_end_offset, followed.leader_epoch)
                is_current = held == (asked.fetch_offset, asked.current_leader_epoch)
                if is_current and not self._take_partition(fetcher, followed, entry, effects):
                    self._delay_partition(fetcher, followed, effects)
                elif followed.delayed_until_ms is None:
                    self._want_partition(fetcher, followed)
        self._fetch_partitions(fetcher, effects)

    def _take_partition(
        self, fetcher: _Fetcher, followed: _Followed, entry: Any, effects: Effects
    ) -> bool:
        """Carry out what the leader says of one partition; False to ask again later only."""
        log, actions = followed.log, self._actions
        error = entry.error_code
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._ask_log_start(fetcher, followed, effects)
            return False
        at = entry.diverging_epoch
        if error == ErrorCode.NONE and at is not None and at.end_offset >= 0:
            # The leader has another history below the offset that was asked for.
            return self._truncate_log(log, at.epoch, at.end_offset, effects)
        if error == ErrorCode.NONE and entry.records:
            error = actions.append(log, bytes(entry.records), effects)
        if error != ErrorCode.NONE:
            effects.trace("replica-fetch-failed", log=log.directory, error=ErrorCode(error).name)
            return False
        actions.take_offsets(log, entry.high_watermark, entry.log_start_offset, effects)
        return True

    def _truncate_log(
        self, log: PartitionLog, epoch: int, end_offset: int, effects: Effects
    ) -> bool:
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
            held = fetcher.partitions.get(log.name)
            if answer is None or held is not followed:
                return
            for entry in (p for topic in answer.topics for p in topic.partitions):
                if entry.error_code == ErrorCode.NONE and entry.offset > log.log_end_offset:
                    self._actions.begin_at(log, entry.offset, effects)

        self._peers.send(fetcher.leader, request, LIST_OFFSETS_VERSION, on_answer, effects)


def _topics(named: Mapping[Key, FetchParameters]) -> list[Any]:
    """The partitions of a request."""
    topics: dict[bytes, list[Any]] = {}
    for (topic_id, number), position in named.items():
        topics.setdefault(topic_id, []).append(
            _Fetch.FetchTopic.FetchPartition(
                partition=number,
                current_leader_epoch=position.current_leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=position.max_bytes,
                replica_directory_id=None,
                high_watermark=NO_HIGH_WATERMARK,
            )
        )
    return [
        _Fetch.FetchTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=partitions)
        for topic_id, partitions in topics.items()
    ]
