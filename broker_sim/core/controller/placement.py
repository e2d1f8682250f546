"""Placement of the replicas of new partitions: Kafka's `StripedReplicaPlacer`.

The replicas of a partition are taken from the racks in turn, and in a rack from its brokers in
turn. Each next partition begins one rack further, and one broker further in each rack. Brokers
without a rack are a rack of their own. After as many partitions as there are brokers, racks and
brokers are shuffled, so that the same sets do not repeat.

Brokers that are down (fenced) come last in their rack, and are never the first replica. Randomness
is a parameter (`Draw`), used as Kafka uses its own: equal draws give equal placements. Another
module decides whether a broker may lead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation

Draw = Callable[[int], int]
"""A random number below the bound, from 0 on."""
Item = TypeVar("Item")


def place_replicas(
    racks: Mapping[int, str | None],
    fenced: Collection[int],
    partition_count: int,
    replication_factor: int,
    draw: Draw,
) -> list[tuple[int, ...]]:
    """The replicas of `partition_count` new partitions, the preferred leader first.

    `racks` holds all brokers, `fenced` those of them that are down. Raises
    TopicRefused(INVALID_REPLICATION_FACTOR).
    """
    up = len(racks) - len(fenced)
    _check_replication_factor(replication_factor, len(racks), up)
    placer = _Placer(racks, fenced, draw)
    return [placer.place(replication_factor) for _ in range(partition_count)]


class _Brokers:
    """Brokers of a rack, in turn; each turn begins one further than the one before."""

    def __init__(self, brokers: Sequence[int], draw: Draw) -> None:
        self._brokers = sorted(brokers)
        self._offset = draw(len(brokers)) if brokers else 0
        self._given = 0
        self._turn = 0

    def next(self, turn: int) -> int | None:
        """The next broker of this turn, None when all were given."""
        count = len(self._brokers)
        if count and self._turn != turn:
            self._turn, self._given = turn, 0
            self._offset = (self._offset + 1) % count
        if self._given >= count:
            return None
        broker = self._brokers[(self._given + self._offset) % count]
        self._given += 1
        return broker

    def shuffle(self, draw: Draw) -> None:
        """Another order of the brokers."""
        _shuffle(self._brokers, draw)


class _Rack:
    """The brokers of a rack: those that are down are drawn for first, and placed on last."""

    def __init__(self, brokers: Sequence[int], fenced: Collection[int], draw: Draw) -> None:
        self._fenced = _Brokers([each for each in brokers if each in fenced], draw)
        self._unfenced = _Brokers([each for each in brokers if each not in fenced], draw)

    def next_unfenced(self, turn: int) -> int | None:
        """The next broker of this turn that is up, None when all were given."""
        return self._unfenced.next(turn)

    def next(self, turn: int) -> int | None:
        """The next broker of this turn, None when all were given."""
        found = self._unfenced.next(turn)
        return self._fenced.next(turn) if found is None else found

    def shuffle(self, draw: Draw) -> None:
        """Another order of the brokers."""
        self._fenced.shuffle(draw)
        self._unfenced.shuffle(draw)


class _Placer:
    """A single placement; a turn is a partition."""

    def __init__(
        self, racks: Mapping[int, str | None], fenced: Collection[int], draw: Draw
    ) -> None:
        by_rack: dict[str | None, list[int]] = {}
        for broker, rack in racks.items():
            by_rack.setdefault(rack, []).append(broker)
        names = sorted(by_rack, key=lambda name: (name is not None, name or ""))
        self._racks = {name: _Rack(by_rack[name], fenced, draw) for name in names}
        self._names = names
        self._draw = draw
        self._up = len(racks) - len(fenced)
        self._offset = draw(len(names))
        self._turn = 0

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """The replicas of the next partition."""
        if self._turn == self._up and self._up > 1:
            _shuffle(self._names, self._draw)
            for rack in self._racks.values():
                rack.shuffle(self._draw)
            self._turn = 0
        first_place, leader = self._first()
        replicas = [leader]
        is_first_passed = False
        place = self._offset % len(self._names)
        while len(replicas) < replication_factor:
            if place == first_place and not is_first_passed:
                # It has given the leader in this round over the racks.
                is_first_passed = True
            else:
                broker = self._racks[self._names[place]].next(self._turn)
                if broker is not None:
                    replicas.append(broker)
            place = (place + 1) % len(self._names)
        self._turn += 1
        self._offset = (self._offset % len(self._names)) + 1
        return tuple(replicas)

    def _first(self) -> tuple[int, int]:
        """The first rack from the offset on that has a broker which is up, and this broker."""
        count = len(self._names)
        for step in range(count):
            place = (self._offset + step) % count
            broker = self._racks[self._names[place]].next_unfenced(self._turn)
            if broker is not None:
                return place, broker
        raise InvariantViolation("all brokers are fenced")


def _shuffle(items: list[Item], draw: Draw) -> None:
    """Shuffle in place like Java's `Collections.shuffle`."""
    for size in range(len(items), 1, -1):
        other = draw(size)
        items[size - 1], items[other] = items[other], items[size - 1]


def check_assignment(
    replicas: Sequence[int], brokers: Collection[int], replication_factor: int | None = None
) -> None:
    """Raise TopicRefused(INVALID_REPLICA_ASSIGNMENT) unless a partition may have these replicas.

    `brokers` are those that exist, `replication_factor` is that of the topic's other partitions,
    None for the first one (Kafka's `validateManualPartitionAssignment`).
    """
    reason = None
    unknown = [broker for broker in sorted(replicas) if broker not in brokers]
    twice = [broker for broker in sorted(replicas) if replicas.count(broker) > 1]
    if not replicas:
        reason = "an assignment names no broker"
    elif unknown:
        reason = f"an assignment names broker {unknown[0]}, which is not registered"
    elif twice:
        reason = f"an assignment names broker {twice[0]} more than once"
    elif replication_factor is not None and len(replicas) != replication_factor:
        reason = (
            f"an assignment has {len(replicas)} replicas, other partitions have "
            f"{replication_factor}"
        )
    if reason is not None:
        raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _check_replication_factor(replication_factor: int, registered: int, up: int) -> None:
    reason = None
    if replication_factor < 1:
        reason = "Replication factor must be larger than 0."
    elif up < 1:
        reason = "All brokers are down or shutting down."
    elif replication_factor > registered:
        reason = f"{replication_factor} replicas are not possible: {registered} brokers exist"
    if reason is not None:
        raise TopicRefused(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
