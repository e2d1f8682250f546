"""A random life of a replicated partition: lost and late messages, elections, crashes; and what
must hold whatever happens."""

from __future__ import annotations

import random
from collections.abc import Iterator

from support.core.core_cluster import ORDERS, ClusterBroker, CoreCluster, replicated

from broker_sim.core.controller.registrations import NO_LEADER
from txnlog_kafka.wire.records import BatchHeader, parse_header

COUNT = 3


def batches_in(data: bytes) -> Iterator[BatchHeader]:
    """The headers of whole batches."""
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        yield header
        position += header.size_bytes


class ReplicationRun:
    """Draws what happens. `acknowledged` and `read` say what must never change."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = CoreCluster(COUNT)
        self.cluster.create(replicated(*range(COUNT)))
        self.pending: dict[tuple[int, int, tuple[int, int]], int] = {}
        """crc by (broker, its start, key of the answer)."""
        self.acknowledged: dict[int, int] = {}
        """crc by base offset."""
        self.read: dict[int, int] = {}
        """What consumers have seen, likewise."""
        self.decided: dict[int, bool] = {}
        """Transactions that READ_COMMITTED consumers have seen: whether they were aborted."""
        self.high_watermarks: dict[tuple[int, int], int] = {}
        self.open: list[int] = []
        self._producer_id = 1000
        self._made = 0

    @property
    def up(self) -> list[ClusterBroker]:
        return [broker for broker in self.cluster.brokers.values() if broker.is_up]

    def live(self, count: int) -> None:
        actions = (
            [self.produce] * 5
            + [self.deliver] * 12
            + [self.answer] * 12
            + [self.read_metadata] * 4
            + [self.consume] * 3
            + [self.transact, self.mark, self.decide, self.lose, self.elect]
            + [self.pass_time] * 2
        )
        for number in range(count):
            action = self.crash_or_restart if self.rng.random() < 0.02 else None
            (action or self.rng.choice(actions))()
            self.check_step()
            if number % 25 == 0:
                self.check_equal_below_high_watermarks()

    # ------------------------------------------------------------------ what happens

    def produce(self, **producer: object) -> None:
        broker = self.rng.choice(self.up or [None])
        if broker is None:
            return
        self._made += 1
        held = self.cluster.held().leader
        number = held if held in [b.node_id for b in self.up] else broker.node_id
        if self.rng.random() < 0.2:
            number = broker.node_id  # one that leads no more may think that it does
        value = f"value {self._made}"
        key = self.cluster.produce(number, value, acks=self.rng.choice((1, -1, -1, -1)), **producer)
        asked = self.cluster.brokers[number]
        self.pending[number, asked._starts, key] = self._made

    def transact(self) -> None:
        self._producer_id += 1
        self.open.append(self._producer_id)
        self.produce(producer=(self._producer_id, 0, 0), transactional=True)

    def mark(self) -> None:
        if self.open and self.up:
            producer_id = self.open.pop(self.rng.randrange(len(self.open)))
            number = self.rng.choice(self.up).node_id
            leader = self.cluster.held().leader
            number = leader if leader in [b.node_id for b in self.up] else number
            self.cluster.write_marker(number, producer_id, commit=self.rng.random() < 0.5)

    def deliver(self) -> None:
        waiting = [asked for asked in self.cluster.sent if asked.key is None]
        if waiting:
            self.cluster.deliver(self.rng.choice(waiting))

    def answer(self) -> None:
        for asked in self.rng.sample(self.cluster.sent, len(self.cluster.sent)):
            if self.cluster.answer(asked):
                return

    def lose(self) -> None:
        if self.cluster.sent and self.rng.random() < 0.5:
            self.cluster.lose(self.rng.choice(self.cluster.sent))

    def read_metadata(self) -> None:
        if self.up:
            self.cluster.read(self.rng.choice(self.up).node_id)

    def decide(self) -> None:
        self.cluster.decide(read=False)

    def pass_time(self) -> None:
        self.cluster.advance(self.rng.choice((10, 200, 600, 1200, 6000)))

    def elect(self) -> None:
        """Anyone of the ISR that is up."""
        held = self.cluster.held()
        able = [b.node_id for b in self.up if b.node_id in held.isr and b.node_id != held.leader]
        if able and self.rng.random() < 0.6:
            self.cluster.change(leader=self.rng.choice(able), read=False)

    def crash_or_restart(self) -> None:
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        if broker.is_up:
            self.crash(broker.node_id)
        else:
            self.restart(broker.node_id)

    def crash(self, number: int) -> None:
        cluster, held = self.cluster, self.cluster.held()
        cluster.kill(number)
        cluster.registered.pop(number)
        cluster.write({"type": "broker-fenced", "broker": number}, read=False)
        isr = tuple(each for each in held.isr if each != number) or held.isr
        able = [b.node_id for b in self.up if b.node_id in isr]
        leader = held.leader
        if leader == number:
            leader = self.rng.choice(able) if able else NO_LEADER
        if (isr, leader) != (held.isr, held.leader):
            cluster.change(isr=isr, leader=leader, read=False)

    def restart(self, number: int) -> None:
        self.cluster.restart(number)
        held = self.cluster.held()
        if held.leader == NO_LEADER and number in held.isr:
            self.cluster.change(leader=number, read=False)

    def consume(self) -> None:
        """Read all that some broker gives, as both kinds of consumers."""
        if not self.up:
            return
        number = self.rng.choice(self.up).node_id
        for committed in (False, True):
            entry = self.cluster.fetch(number, 0, committed=committed)
            if entry.error_code:
                continue
            aborted = {each.producer_id for each in entry.aborted_transactions or ()}
            for header in batches_in(bytes(entry.records or b"")):
                seen = self.read.setdefault(header.base_offset, header.crc)
                assert seen == header.crc, f"offset {header.base_offset} was another record"
                if committed and header.is_transactional and not header.is_control:
                    was = header.producer_id in aborted
                    assert self.decided.setdefault(header.producer_id, was) == was

    # ------------------------------------------------------------------ what must hold

    def check_step(self) -> None:
        for (number, starts, key), _ in list(self.pending.items()):
            broker = self.cluster.brokers[number]
            result = self.cluster.outcome(number, key)
            if result is None:
                continue
            del self.pending[number, starts, key]
            if result.error_code == 0 and self._asked_for_all(broker, key):
                header = self._batch_at(broker, result.base_offset)
                self.acknowledged[result.base_offset] = header.crc
        for broker in self.up:
            log = broker.log()
            place = broker.node_id, broker._starts
            assert log.high_watermark >= self.high_watermarks.get(place, 0)
            assert log.last_stable_offset <= log.high_watermark <= log.log_end_offset
            self.high_watermarks[place] = log.high_watermark

    def _asked_for_all(self, broker: ClusterBroker, key: tuple[int, int]) -> bool:
        return key in broker.asked_for_all

    def _batch_at(self, broker: ClusterBroker, offset: int) -> BatchHeader:
        (header, _) = next(iter(broker.log().batches(offset)))
        assert header.base_offset == offset
        return header

    def check_equal_below_high_watermarks(self) -> None:
        for one in self.up:
            for other in self.up:
                end = min(one.log().high_watermark, other.log().high_watermark)
                pair = [self.cluster.values(b.node_id, end) for b in (one, other)]
                assert pair[0] == pair[1]

    def finish(self) -> None:
        """All come back, everything is delivered: the replicas are one log."""
        for broker in self.cluster.brokers.values():
            if not broker.is_up:
                self.restart(broker.node_id)
        for number in self.cluster.brokers:
            self.cluster.read(number)
        for _ in range(5):
            self.cluster.settle()
            self.check_step()
        logs = [broker.log() for broker in self.up]
        end = logs[0].log_end_offset
        assert [(log.high_watermark, log.log_end_offset) for log in logs] == [(end, end)] * COUNT
        assert set(self.cluster.held(ORDERS).isr) == set(range(COUNT))
        self.check_equal_below_high_watermarks()
        final = {offset: crc for offset, _, crc in self.cluster.values(0)}
        for name, kept in (("acknowledged", self.acknowledged), ("read", self.read)):
            lost = {offset for offset, crc in kept.items() if final.get(offset) != crc}
            assert not lost, f"{name} and lost: {sorted(lost)}"
        transactions = [
            (
                log.last_stable_offset,
                log.read(
                    0, max_bytes=1 << 20, read_committed=True, at_least_one_batch=True
                ).aborted,
            )
            for log in logs
        ]
        assert transactions[0] == transactions[1] == transactions[2]
        self._check_decisions({each.producer_id for each in transactions[0][1] or ()})

    def _check_decisions(self, aborted: set[int]) -> None:
        for producer_id, was_aborted in self.decided.items():
            assert (producer_id in aborted) == was_aborted
