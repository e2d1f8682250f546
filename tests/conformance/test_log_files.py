"""The log files are Kafka's own: Apache Kafka serves ours, and we load what Apache Kafka wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.prepared import wait_until_marked
from support.clients.librdkafka import create_topic, read_topic, transact, transactional
from support.core.log_build import NOW_MS, LogOnDisk, build_batch
from support.harness.availability import check_available

from broker_sim.core.effects import WriteFile
from broker_sim.core.log import Folder, KnownAtStart, LogConfig, PartitionLog, files
from simulation.hosts.disk import SimDisk

pytestmark = [pytest.mark.kafka, pytest.mark.only_kafka]

TOPIC = "files"


@pytest.fixture
def kafka(tmp_path) -> Iterator[ApacheKafka]:
    """Apache Kafka with an empty topic that keeps everything."""
    check_available("apache_kafka")
    with ApacheKafka(tmp_path / "kafka") as running:
        create_topic(running.bootstrap_servers, TOPIC, config={"retention.ms": "-1"})
        yield running


def consume(kafka: ApacheKafka, isolation: str) -> list[tuple[int, str]]:
    """(offset, value) of all up to the end of the partition."""
    seen = read_topic(kafka.bootstrap_servers, TOPIC, isolation=isolation)
    return [(each.offset, (each.value or b"").decode()) for each in seen]


def our_log() -> LogOnDisk:
    """Several segments; committed, aborted and open transactions; plain batches."""
    on_disk = LogOnDisk()
    for i in range(30):
        on_disk.produce(f"plain {i}" * 3)
        on_disk.produce(f"good {i}", f"too {i}", producer=(7000, 0, 2 * i), transactional=True)
        on_disk.produce(f"bad {i}", producer=(7001, i, 0), transactional=True)
        on_disk.mark(7000, 0, "commit")
        on_disk.mark(7001, i + 1, "abort", tv=2)
    on_disk.produce("open", producer=(7002, 3, 0), transactional=True)
    on_disk.append(build_batch("behind the open one", timestamp=NOW_MS + 1))
    effects = on_disk.effects()
    on_disk.log.close(effects)
    on_disk.carry_out(effects)
    return on_disk


@pytest.mark.invariant(72)
@pytest.mark.parametrize("clean", [True, False])
def test_apache_kafka_serves_our_files(kafka, clean):
    on_disk = our_log()
    kafka.stop()
    folder = Path(kafka.data_dir) / f"{TOPIC}-0"
    for path in folder.iterdir():
        if path.name != files.PARTITION_METADATA:
            path.unlink()
    for name in on_disk.disk.list("t-0"):
        if name != files.PARTITION_METADATA:
            (folder / name).write_bytes(on_disk.disk.read(f"t-0/{name}", 0, 1 << 30))
    if not clean:
        (Path(kafka.data_dir) / ".kafka_cleanshutdown").unlink()
    kafka.start()
    assert consume(kafka, "read_uncommitted") == on_disk.consume(0, committed=False)
    assert consume(kafka, "read_committed") == on_disk.consume(0, committed=True)
    log = (kafka.folder / "broker.log").read_text(errors="replace")
    assert "corrupt" not in log.lower()


def load_from(folder: Path, *, clean: bool) -> LogOnDisk:
    """Our log on a copy of the folder."""
    disk = SimDisk()
    for path in folder.iterdir():
        disk.apply(WriteFile(f"t-0/{path.name}", path.read_bytes()))
    on_disk = LogOnDisk.__new__(LogOnDisk)
    on_disk.config, on_disk.disk, on_disk.now_ms = LogConfig(), disk, NOW_MS
    topic_id = files.decode_partition_metadata((folder / files.PARTITION_METADATA).read_bytes())
    assert topic_id is not None
    effects = on_disk.effects()
    on_disk.log = PartitionLog.load(
        Folder("t", 0, topic_id, on_disk.config, disk), KnownAtStart(clean_shutdown=clean), effects
    )
    assert not (clean and effects.storage), "a cleanly stopped Kafka's files need no repair"
    on_disk.carry_out(effects)
    return on_disk


@pytest.mark.parametrize("clean", [True, False])
def test_our_log_loads_what_apache_kafka_wrote(kafka, clean):
    good, bad, late = (
        transactional(kafka.bootstrap_servers, name) for name in ("good", "bad", "late")
    )
    for round_ in range(5):
        for producer, name in ((good, "good"), (bad, "bad")):
            values = [f"{name} {round_} {i}" for i in range(3)]
            transact(producer, TOPIC, *values, commits=None)
        good.commit_transaction(30)
        bad.abort_transaction(30)
    transact(late, TOPIC, "open", commits=None)
    wait_until_marked(kafka.bootstrap_servers)
    uncommitted, committed = consume(kafka, "read_uncommitted"), consume(kafka, "read_committed")
    if clean:
        kafka.stop()
    folder = Path(kafka.data_dir) / f"{TOPIC}-0"
    on_disk = load_from(folder, clean=clean)
    assert on_disk.consume(0, committed=False) == uncommitted
    assert on_disk.consume(0, committed=True) == committed
    assert [value for _, value in committed] == [
        f"good {r} {i}" for r in range(5) for i in range(3)
    ]
    open_ids = [p.producer_id for p in on_disk.log.producers() if p.current_txn_start_offset >= 0]
    assert len(open_ids) == 1
    assert on_disk.log.first_unstable_offset == uncommitted[-1][0]
    assert len(on_disk.log.producers()) == 3
