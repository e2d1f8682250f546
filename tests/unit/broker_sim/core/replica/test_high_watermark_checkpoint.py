"""`replication-offset-checkpoint`: who writes it, when, and what a start makes of it; and a start
on a disk that has lost something which other replicas have."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, fetch_request, produce_request
from support.core.core_cluster import CoreCluster, replicated
from support.core.core_network import ORDERS
from support.core.log_build import build_batch

from broker_sim.core.effects import Append, Delete, Truncate
from broker_sim.core.log.offset_checkpoint import HIGH_WATERMARK_FILE, decode_offsets

INTERVAL_MS = 5_000
LOG = "orders-0/00000000000000000000.log"


@pytest.fixture
def cluster() -> CoreCluster:
    """Three replicas that have three records, known to all of them as committed."""
    made = CoreCluster()
    made.create(replicated())
    made.produce(0, "a", "b", "c")
    made.settle()
    return made


def written(cluster: CoreCluster, number: int) -> dict | None:
    disk = cluster.brokers[number].disk
    size = disk.size_bytes(HIGH_WATERMARK_FILE)
    return None if size is None else decode_offsets(disk.read(HIGH_WATERMARK_FILE, 0, size))


def start_alone(cluster: CoreCluster, number: int) -> int:
    """Start a new process that hears of no other broker; return its high watermark."""
    cluster.kill(number)
    cluster.brokers[number].start()
    return cluster.brokers[number].log().high_watermark


def test_each_replica_writes_its_high_watermark_by_timer_and_a_start_reads_it(cluster):
    for number in (0, 1):
        cluster.advance(INTERVAL_MS)
        assert written(cluster, number) == {ORDERS: 3}
        assert start_alone(cluster, number) == 3


def test_without_the_file_nothing_is_known_to_be_committed(cluster):
    for name in (HIGH_WATERMARK_FILE, f"{HIGH_WATERMARK_FILE}.crc"):
        cluster.brokers[1].disk.apply(Delete(name))
    assert start_alone(cluster, 1) == 0
    assert cluster.brokers[1].log().log_end_offset == 3


def test_a_clean_stop_writes_it(cluster):
    cluster.produce(0, "d")
    cluster.exchange()
    cluster.exchange()
    reached = cluster.brokers[0].log().high_watermark
    assert written(cluster, 0) != {ORDERS: reached}
    cluster.brokers[0].stop()
    assert written(cluster, 0) == {ORDERS: reached}


def test_it_is_written_again_when_something_has_moved_only(cluster):
    cluster.advance(INTERVAL_MS)
    broker = cluster.brokers[1]
    broker.operations.clear()

    def count() -> int:
        paths = [getattr(operation, "path", "") for operation in broker.operations]
        return paths.count(HIGH_WATERMARK_FILE)

    cluster.advance(INTERVAL_MS)
    cluster.advance(INTERVAL_MS)
    assert count() == 0
    cluster.produce(0, "d")
    cluster.settle()
    cluster.advance(INTERVAL_MS)
    assert count() == 1


def test_a_changed_digit_is_noticed_and_the_file_not_believed(cluster):
    cluster.advance(INTERVAL_MS)
    disk = cluster.brokers[1].disk
    data = disk.read(HIGH_WATERMARK_FILE, 0, 100)
    disk.apply(Truncate(HIGH_WATERMARK_FILE, len(data) - 2))
    disk.apply(Append(HIGH_WATERMARK_FILE, len(data) - 2, b"2\n"))
    assert written(cluster, 1) == {ORDERS: 2}
    assert start_alone(cluster, 1) == 0


def test_it_is_not_above_the_end_of_a_log_that_has_lost_records(cluster):
    cluster.advance(INTERVAL_MS)
    cluster.brokers[1].disk.apply(Truncate(LOG, 0))
    assert start_alone(cluster, 1) == 0
    assert written(cluster, 1) == {ORDERS: 0}


def test_a_deleted_topic_has_no_entry_for_the_next_of_its_name(cluster):
    cluster.advance(INTERVAL_MS)
    cluster.change(replicas=(0, 2), isr=(0, 2))
    assert written(cluster, 1) == {}


def test_a_broker_that_is_alone_writes_none():
    broker = BrokerOnDisk()
    broker.ask(produce_request({("orders", 0): build_batch("a")}), 11)
    broker.advance(10 * INTERVAL_MS)
    broker.stop()
    assert broker.disk.size_bytes(HIGH_WATERMARK_FILE) is None


@pytest.mark.parametrize("loss", ["log", "directory", "everything"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_replica_that_has_lost_what_it_had_gets_it_from_the_leader(cluster, loss, clean):
    broker = cluster.brokers[2]
    if clean:
        broker.stop()
    cluster.kill(2)
    paths = {"log": [LOG], "directory": ["orders-0"], "everything": ["orders-0", "meta.properties"]}
    for path in paths[loss]:
        broker.disk.apply(Delete(path))
    cluster.restart(2)
    assert cluster.brokers[2].log().log_end_offset < 3
    cluster.settle()
    assert cluster.batches(2) == cluster.batches(0)
    assert cluster.brokers[2].log().high_watermark == 3
    answer = cluster.brokers[0].ask(fetch_request("orders", max_wait_ms=0), 12)
    assert answer.responses[0].partitions[0].high_watermark == 3
