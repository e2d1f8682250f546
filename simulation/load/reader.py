"""Plain readers of the simulation: a second, slow and obvious, client of the broker.

They share no decoding or filtering with the connector's codec: batches are read one record at a
time, and aborted transactions are dropped by the rule of Kafka's consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from simulation.checkers.batches import with_hidden
from simulation.load.routing import GROUP, NO_EPOCH, READ_TIMEOUT_MS, RETRY_MS, Routing
from simulation.violation import violated
from txnlog_kafka.operations.effects import Call, Calls, Operation, Reply, Sleep
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode, error_name
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import Record

FETCH_VERSION_MAX = 12
"""The last version that names topics rather than ids."""
OFFSET_FETCH_VERSION_MAX = 9
"""Likewise."""

_FETCH = APIS[ApiKey.FETCH].request
_LIST_OFFSETS = APIS[ApiKey.LIST_OFFSETS].request
_OFFSET_FETCH = APIS[ApiKey.OFFSET_FETCH].request
_CREATE_TOPICS = APIS[ApiKey.CREATE_TOPICS].request
_LIST_TRANSACTIONS = APIS[ApiKey.LIST_TRANSACTIONS].request


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """A partition's ends, exclusive: high watermark and last stable offset."""

    high_watermark: int
    last_stable_offset: int


def create_topics(
    places: Routing, partitions: dict[str, int], configs: Mapping[str, str]
) -> Operation[None]:
    """Create topics, with a replica on each broker; one that is there already is fine."""
    topics = [
        _CREATE_TOPICS.CreatableTopic(
            name=name,
            num_partitions=count,
            replication_factor=places.brokers,
            assignments=[],
            configs=[
                _CREATE_TOPICS.CreatableTopic.CreatableTopicConfig(name=option, value=value)
                for option, value in configs.items()
            ],
        )
        for name, count in partitions.items()
    ]
    while True:
        answer = yield from places.ask(_CREATE_TOPICS(topics=topics, timeout_ms=READ_TIMEOUT_MS))
        codes = {topic.error_code for topic in answer.topics}
        if codes <= {0, ErrorCode.TOPIC_ALREADY_EXISTS}:
            return
        yield Sleep(RETRY_MS)


def read_partition(
    places: Routing, topic: str, partition: int, start_offset: int, *, read_committed: bool
) -> Operation[tuple[list[Record], int]]:
    """Read from `start_offset` to the present end; return the records and the next offset."""
    records: list[Record] = []
    next_offset = start_offset
    leader = partial(places.leader, topic, partition)
    while True:
        yield from leader()
        request = _fetch_request(places, topic, {partition: next_offset}, read_committed)
        answer = yield from places.ask(request, FETCH_VERSION_MAX, leader)
        parts = _fetched(topic, answer)
        if not parts:
            places.forget()
            yield Sleep(RETRY_MS)
            continue
        part = parts[0]
        found, after = _visible(part, next_offset, read_committed=read_committed)
        records += found
        limit = part.last_stable_offset if read_committed else part.high_watermark
        if after == next_offset or after >= limit:
            return records, after
        next_offset = after


def _fetched(topic: str, answer: Message) -> list[Message]:
    """The partitions of a Fetch answer that were read; those with a passing error are not."""
    parts = [part for response in answer.responses for part in response.partitions]
    for code in (answer.error_code, *(part.error_code for part in parts)):
        if code and code not in RETRIABLE:
            violated(5, "a reader's position is refused", topic=topic, error=error_name(code),
                     answer=answer)  # fmt: skip
    return [part for part in parts if not part.error_code]


def fetch_request(
    topic: Mapping[str, object],
    positions: Mapping[int, int],
    max_bytes: int,
    partition_max_bytes: int,
    *,
    epoch: Callable[[int], int] = lambda _: NO_EPOCH,
    read_committed: bool = False,
) -> Message:
    """Build a Fetch of a topic, by name or id, from the positions of its partitions on.

    `epoch` gives the leader epoch that the client knows, by partition.
    """
    partitions = [
        _FETCH.FetchTopic.FetchPartition(
            partition=partition,
            current_leader_epoch=epoch(partition),
            fetch_offset=start,
            log_start_offset=-1,
            partition_max_bytes=partition_max_bytes,
        )
        for partition, start in positions.items()
    ]
    return _FETCH(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[_FETCH.FetchTopic(partitions=partitions, **topic)],
        forgotten_topics_data=[],
        rack_id="",
    )


def _fetch_request(
    places: Routing, topic: str, positions: Mapping[int, int], read_committed: bool
) -> Message:
    return fetch_request(
        {"topic": topic}, positions, 4096 * len(positions), 2048,
        epoch=partial(places.epoch, topic), read_committed=read_committed,
    )  # fmt: skip


def _visible(part: Message, start: int, *, read_committed: bool) -> tuple[list[Record], int]:
    data, aborted = bytes(part.records or b""), part.aborted_transactions or ()
    records: list[Record] = []
    next_offset = start
    for batch, is_hidden in with_hidden(data, aborted):
        next_offset = max(next_offset, batch.header.next_offset)
        if not (read_committed and is_hidden):
            records += [record for record in batch.records if record.record_offset >= start]
    if next_offset > max(part.high_watermark, start):
        violated(5, "records above the high watermark", high_watermark=part.high_watermark,
                 next_offset=next_offset)  # fmt: skip
    return records, next_offset


def read_bounds(places: Routing, topic: str, partition: int) -> Operation[ReadBounds]:
    """High watermark and last stable offset, as ListOffsets tells them."""
    ends = []
    leader = partial(places.leader, topic, partition)
    for isolation_level in (0, 1):
        while True:
            yield from leader()
            request = _bounds_request(places, topic, partition, isolation_level)
            answer = yield from places.ask(request, where=leader)
            part = answer.topics[0].partitions[0]
            if part.error_code == 0:
                break
            places.forget()
            yield Sleep(RETRY_MS)
        ends.append(int(part.offset))
    return ReadBounds(*ends)


def _bounds_request(places: Routing, topic: str, partition: int, isolation_level: int) -> Message:
    topic_type = _LIST_OFFSETS.ListOffsetsTopic
    wanted = topic_type.ListOffsetsPartition(
        partition_index=partition,
        current_leader_epoch=places.epoch(topic, partition),
        timestamp=-1,
    )
    return _LIST_OFFSETS(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[topic_type(name=topic, partitions=[wanted])],
    )


def read_group(places: Routing, group_id: str) -> Operation[dict[tuple[str, int], int]]:
    """Read all stable committed offsets of a group."""
    coordinator = partial(places.coordinator, GROUP, group_id)
    while True:
        request = _offsets_request((group_id,))
        answer = yield from places.ask(request, OFFSET_FETCH_VERSION_MAX, coordinator)
        found = _stable_offsets(answer.groups[0])
        if found is not None:
            return found
        places.forget()
        yield Sleep(RETRY_MS)


def _offsets_request(group_ids: Iterable[str]) -> Message:
    group_type = _OFFSET_FETCH.OffsetFetchRequestGroup
    return _OFFSET_FETCH(
        groups=[group_type(group_id=group_id, topics=None) for group_id in group_ids],
        require_stable=True,
    )


def _stable_offsets(group: Message) -> dict[tuple[str, int], int] | None:
    """Return the offsets; None while they are not stable, or the coordinator is loading."""
    parts = [(t.name, p) for t in group.topics for p in t.partitions]
    if {group.error_code, *(p.error_code for _, p in parts)} != {0}:
        return None
    return {(name, p.partition_index): int(p.committed_offset) for name, p in parts}


def read_undecided(places: Routing) -> Operation[list[str]]:
    """Transactional ids with a transaction that is not complete, as ListTransactions tells."""
    undecided = []
    for node in range(places.brokers):
        undecided += yield from _read_undecided_at(places, node)
    return undecided


def _read_undecided_at(places: Routing, node: int) -> Operation[list[str]]:
    def at_node() -> Operation[int]:
        yield from ()
        return node

    request = _LIST_TRANSACTIONS(state_filters=[], producer_id_filters=[])
    while True:
        answer = yield from places.ask(request, where=at_node)
        if answer.error_code == 0:
            return [
                t.transactional_id
                for t in answer.transaction_states
                if t.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort")
            ]
        yield Sleep(RETRY_MS)


def watch_output(
    places: Routing,
    topic: str,
    partitions: int,
    groups: Callable[[], tuple[str, ...]],
    *,
    on_records: Callable[[int, list[Record]], None],
    on_group: Callable[[int, str, dict[tuple[str, int], int], int], None],
    done_batches: Callable[[], dict[str, int]],
    interval_ms: int,
) -> Operation[None]:
    """For ever: read what is newly committed, and the groups' stable offsets.

    `on_group` gets the node that was asked, the group, its offsets and what `done_batches` said of
    the group before.
    It looks less often while there is nothing new: `interval_ms` doubles, up to eight times.
    """
    positions = dict.fromkeys(range(partitions), 0)
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    pause_ms = interval_ms
    while True:
        # Ask all leaders for records, and all coordinators for offsets, at the same time.
        leaders = yield from places.leaders(topic, positions)
        coordinators = yield from places.coordinators(GROUP, groups())
        fetches = [
            Call(node, _fetch_request(places, topic, {n: positions[n] for n in numbers}, True),
                 READ_TIMEOUT_MS, FETCH_VERSION_MAX)
            for node, numbers in leaders.items()
        ]  # fmt: skip
        reads = [
            Call(node, _offsets_request(names), READ_TIMEOUT_MS, OFFSET_FETCH_VERSION_MAX)
            for node, names in coordinators.items()
        ]
        done = done_batches()
        outcome = (yield Calls((*fetches, *reads))) or ()
        # Report the records, and move each partition's position behind them.
        changed, found_count = False, 0
        for fetched in outcome[: len(fetches)]:
            for part in _fetched(topic, fetched.message) if isinstance(fetched, Reply) else ():
                number = part.partition_index
                records, after = _visible(part, positions[number], read_committed=True)
                on_records(number, records)
                changed |= after > positions[number]
                positions[number] = after
                found_count += 1
        # Report the offsets of each group whose offsets are stable.
        for node, grouped in zip(coordinators, outcome[len(fetches) :], strict=False):
            for group in grouped.message.groups if isinstance(grouped, Reply) else ():
                found = _stable_offsets(group)
                if found is not None:
                    on_group(node, group.group_id, found, done.get(group.group_id, 0))
                    changed |= found != offsets.get(group.group_id)
                    offsets[group.group_id] = found
                    found_count += 1
        # A partition or a group without an answer may have a new leader or coordinator.
        if found_count < partitions + sum(map(len, coordinators.values())):
            places.forget()
        pause_ms = interval_ms if changed else min(2 * pause_ms, 8 * interval_ms)
        yield Sleep(pause_ms)


def watch_end(
    places: Routing,
    topic: str,
    partitions: int,
    *,
    on_records: Callable[[int, list[Record]], None],
    on_bounds: Callable[[int, ReadBounds], None],
    interval_ms: int,
) -> Operation[None]:
    """For ever: read all records of any transaction, and the ends of the partitions."""
    positions = dict.fromkeys(range(partitions), 0)
    while True:
        for number in positions:
            bounds = yield from read_bounds(places, topic, number)
            on_bounds(number, bounds)
            if bounds.high_watermark > positions[number]:
                records, positions[number] = yield from read_partition(
                    places, topic, number, positions[number], read_committed=False
                )
                on_records(number, records)
        yield Sleep(interval_ms)
