"""A random life of a replicated partition: lost and late messages, elections, crashes; and what
must hold whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

from support.core.broker_build import BrokerOnDisk
from support.core.core_cluster import CoreCluster, replicated
from support.core.core_network import ORDERS
from support.lives.cluster_run import ClusterRun

from txnlog_kafka.wire.records import BatchHeader, parse_header

COUNT = 3


def batches_in(data: bytes) -> Iterator[BatchHeader]:
    """The headers of whole batches."""
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        yield header
        position += header.size_bytes


class ReplicationRun(ClusterRun):
    """Draws what happens. `acknowledged` and `read` say what must never change."""

    at_once = 1
    passes_ms = (10, 200, 600, 1200, 6000)

    def __init__(self, seed: int) -> None:
        super().__init__(seed, CoreCluster(COUNT), [ORDERS])
        self.cluster.create(replicated(*range(COUNT)))
        self.pending: set[tuple[int, int, tuple[int, int]]] = set()
        """By acks=all: (broker, its start, key of the answer)."""
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

    def _leader_or_another(self, another: float) -> int | None:
        """Who leads, if it works; one that leads no more may think that it does."""
        number, leader = self.any_working(), self.cluster.leader()
        is_led = leader in [broker.node_id for broker in self.working]
        return leader if is_led and self.rng.random() > another else number

    def produce(self, **producer: object) -> None:
        number = self._leader_or_another(0.2)
        if number is None:
            return
        self._made += 1
        acks = self.rng.choice((1, -1, -1, -1))
        key = self.cluster.produce(number, f"value {self._made}", acks=acks, **producer)
        if acks == -1:
            self.pending.add((number, self.cluster.brokers[number].starts, key))

    def transact(self) -> None:
        self._producer_id += 1
        self.open.append(self._producer_id)
        self.produce(producer=(self._producer_id, 0, 0), transactional=True)

    def mark(self) -> None:
        number = self._leader_or_another(0)
        if self.open and number is not None:
            producer_id = self.open.pop(self.rng.randrange(len(self.open)))
            self.cluster.write_marker(number, producer_id, commit=self.rng.random() < 0.5)

    def crash_or_restart(self) -> None:
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        (self.fall if broker.is_up else self.rise)(broker.node_id)

    def consume(self) -> None:
        """Read all that some broker gives, as both kinds of consumers."""
        number = self.any_working()
        if number is None:
            return
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
        for asked in list(self.pending):
            answer, is_gone = self.answer_of(*asked)
            if answer is not None or is_gone:
                self.pending.remove(asked)
            result = answer and answer.responses[0].partition_responses[0]
            if result and result.error_code == 0:
                header = self._batch_at(self.cluster.brokers[asked[0]], result.base_offset)
                self.acknowledged[result.base_offset] = header.crc
        for broker in self.working:
            log = broker.log()
            place = broker.node_id, broker.starts
            assert log.high_watermark >= self.high_watermarks.get(place, 0)
            assert log.last_stable_offset <= log.high_watermark <= log.log_end_offset
            self.high_watermarks[place] = log.high_watermark

    def _batch_at(self, broker: BrokerOnDisk, offset: int) -> BatchHeader:
        (header, _) = next(iter(broker.log().batches(offset)))
        assert header.base_offset == offset
        return header

    def check_equal_below_high_watermarks(self) -> None:
        for one in self.working:
            for other in self.working:
                end = min(one.log().high_watermark, other.log().high_watermark)
                pair = [self.cluster.batches(b.node_id, end) for b in (one, other)]
                assert pair[0] == pair[1]

    def finish(self) -> None:
        """All come back, everything is delivered: the replicas are one log."""
        self.all_back()
        for _ in range(5):
            self.cluster.settle()
            self.check_step()
        logs = [broker.log() for broker in self.working]
        end = logs[0].log_end_offset
        assert [(log.high_watermark, log.log_end_offset) for log in logs] == [(end, end)] * COUNT
        assert set(self.cluster.held().isr) == set(range(COUNT))
        self.check_equal_below_high_watermarks()
        final = {offset: crc for offset, _, crc in self.cluster.batches(0)}
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
        aborted = {each.producer_id for each in transactions[0][1] or ()}
        for producer_id, was_aborted in self.decided.items():
            assert (producer_id in aborted) == was_aborted
