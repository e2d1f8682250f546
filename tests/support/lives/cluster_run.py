"""What may happen to brokers whose metadata the test writes: late and lost messages, elections,
deaths and pauses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from support.core.broker_build import BrokerOnDisk
from support.core.core_cluster import CoreCluster
from support.core.core_network import Exchange

from txnlog_kafka.wire.topic_partition import TopicPartition


class ClusterRun:
    """Draws it. `places` are the partitions that change their leaders."""

    at_once: ClassVar[int]
    """So many messages arrive at most when some do."""
    passes_ms: ClassVar[Sequence[int]]

    def __init__(self, seed: int, cluster: CoreCluster, places: Sequence[TopicPartition]) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.places = places

    @property
    def working(self) -> list[BrokerOnDisk]:
        """Those that run, and that the controller takes for alive."""
        return [broker for broker in self.cluster.up if not broker.is_paused]

    def works(self, number: int) -> bool:
        return self.cluster.brokers[number] in self.working

    def any_working(self) -> int | None:
        return self.rng.choice(self.working).node_id if self.working else None

    def _drawn(self, of: Sequence[Exchange]) -> list[Exchange]:
        can_pass = [a for a in of if self.works(a.sender) and self._receives(a)]
        return self.rng.sample(can_pass, len(can_pass))

    def _receives(self, asked: Exchange) -> bool:
        return not self.cluster.brokers[asked.receiver].is_paused

    def deliver(self) -> None:
        waiting = [asked for asked in self.cluster.sent if asked.key is None]
        for asked in self._drawn(waiting)[: self.at_once]:
            if asked in self.cluster.sent:
                self.cluster.deliver(asked)

    def answer(self) -> None:
        left = self.at_once
        for asked in self._drawn(self.cluster.sent):
            if asked in self.cluster.sent and self.cluster.answer(asked):
                left -= 1
            if not left:
                return

    def lose(self) -> None:
        if self.cluster.sent and self.rng.random() < 0.5:
            self.cluster.lose(self.rng.choice(self.cluster.sent))

    def read_metadata(self) -> None:
        number = self.any_working()
        if number is not None:
            self.cluster.read(number)

    def decide(self) -> None:
        self.cluster.decide(read=False)

    def pass_time(self) -> None:
        self.cluster.advance(self.rng.choice(self.passes_ms))

    def elect(self) -> None:
        """Anyone of the ISR that works."""
        place = self.rng.choice(self.places)
        held = self.cluster.held(*place)
        able = [n for n in held.isr if self.works(n) and n != held.leader]
        if able:
            self.cluster.change(*place, leader=self.rng.choice(able), read=False)

    def fall(self, number: int, *, dies: bool = True) -> None:
        """A broker dies, or stands still: the controller takes it for dead."""
        (self.cluster.kill if dies else self.cluster.pause)(number)
        self.cluster.fall(number, self.rng.choice, read=False)

    def rise(self, number: int) -> None:
        """One that has fallen comes back."""
        self.cluster.resume(number)
        self.cluster.rise(number)

    def all_back(self) -> None:
        """Everybody works and has read everything."""
        for number in self.cluster.brokers:
            if not self.works(number):
                self.rise(number)
        for number in self.cluster.brokers:
            self.cluster.read(number)

    def answer_of(self, number: int, starts: int, key: Any) -> tuple[Any, bool]:
        """What a client is told, and whether nothing will come any more."""
        broker = self.cluster.brokers[number]
        is_gone = not broker.is_up or broker.starts != starts
        return broker.asked.answers.pop(key, None), is_gone
