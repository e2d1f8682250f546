"""Compare the bytes at rest with those of this release: logs, checkpoints, metadata records.

`at_rest.json` has each file by its path, text as lines and all else as hex. A difference means that
an older data directory is read in another way, or that Kafka's tools no longer read ours. Then say
in the documentation how to upgrade a directory, and write the file again with `python -m
golden.test_log_golden` in the folder of the tests.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

from support.core.log_build import NOW_MS, TOPIC_ID, build_batch

from broker_sim.core.controller import image, metadata_records
from broker_sim.core.controller.acls import (
    Acl,
    AclOperation,
    Acls,
    PatternType,
    Permission,
    ResourceType,
)
from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.controller.metadata_log import MetadataLog
from broker_sim.core.effects import Effects, WriteFile
from broker_sim.core.log import AppendOrigin, Folder, KnownAtStart, LogConfig, PartitionLog
from broker_sim.core.log.offset_checkpoint import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    STRAY_FILE,
    OffsetCheckpointFile,
    decode_stray,
    encode_offsets,
    encode_stray,
)
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.records import MarkerType, TransactionMarker
from txnlog_kafka.wire.topic_partition import METADATA_TOPIC

STORED = Path(__file__).with_name("at_rest.json")
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150)
TOPIC = image.Topic("orders", uuid.UUID(int=7), 2, {"segment.bytes": 600}, 0)
OTHER = image.Topic("late", uuid.UUID(int=8), 1, {}, 1)
SCRAM_SHA_256 = ScramMechanism.SCRAM_SHA_256
CREDENTIAL = ScramCredential(4096, b"salt", b"stored key", b"server key")
ACL = Acl(ResourceType.TOPIC, PatternType.PREFIXED, "ord", "User:alice", "*", AclOperation.READ,
          Permission.ALLOW)  # fmt: skip
OTHER_ACL = replace(ACL, permission=Permission.DENY)
PRODUCER_IDS = (7, 8, 9)
OFFSETS = (0, 21, 22)
STRAY_PATH = f"orders-1.{0:032x}-stray/{STRAY_FILE}"
STRAY_OFFSETS = {LOG_START_FILE: 3, CLEANER_FILE: 4}
PRODUCERS = [(7, 3, 0, 4), (8, 2, 0, 4), (9, 2, 0, -1)]
EPOCH_ENDS = [(0, 7), (5, 22)]
ABORTED = [(8, 3, 6), (8, 10, 13), (8, 17, 20)]
BY_TIMESTAMP = (NOW_MS + 100, 10)


class _Writer:
    """Writer of a data directory that is the same each time."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.now_ms = NOW_MS
        self._log_of_orders()
        self._checkpoints()
        self._metadata()

    def effects(self) -> Effects:
        self.now_ms += 10
        return Effects(self.now_ms, 0)

    def carry_out(self, effects: Effects) -> None:
        for operation in effects.storage:
            self.disk.apply(operation)

    def _log_of_orders(self) -> None:
        """Plain and transactional batches, both markers, two leaders, an open transaction."""
        effects = self.effects()
        log = PartitionLog.create(Folder("orders", 0, TOPIC_ID, CONFIG, self.disk), effects)
        self.carry_out(effects)
        for turn in range(3):
            self._append(log, f"plain {turn}", "second")
            for producer_id in PRODUCER_IDS:
                self._append(log, f"of {producer_id}", producer=(producer_id, turn, 0))
            for producer_id, kind in ((7, MarkerType.COMMIT), (8, MarkerType.ABORT)):
                effects = self.effects()
                marker = TransactionMarker(producer_id, turn, kind, 4)
                assert log.append_marker(marker, effects=effects).ok
                self.carry_out(effects)
            log.become_leader(5)
        self._append(log, "open", producer=(7, 3, 0))
        effects = self.effects()
        log.close(effects)
        self.carry_out(effects)

    def _append(
        self, log: PartitionLog, *values: str, producer: tuple[int, int, int] | None = None
    ) -> None:
        is_transactional = producer is not None and producer[0] != PRODUCER_IDS[-1]
        effects = self.effects()
        data = build_batch(
            *values, producer=producer, transactional=is_transactional, timestamp=self.now_ms
        )
        assert log.append_as_leader(data, origin=AppendOrigin.CLIENT, effects=effects).ok
        self.carry_out(effects)

    def _checkpoints(self) -> None:
        effects = self.effects()
        points = {("orders", 1): 0, ("orders", 0): OFFSETS[2]}
        effects.storage.append(WriteFile(RECOVERY_POINT_FILE, encode_offsets(points)))
        for path in (LOG_START_FILE, CLEANER_FILE):
            file = OffsetCheckpointFile(path, self.disk)
            file.put({("orders", 0): 3}, effects)
            file.put({("orders", 1): 4}, effects)
        effects.storage.append(WriteFile(STRAY_PATH, encode_stray(STRAY_OFFSETS)))
        self.carry_out(effects)

    def _metadata(self) -> None:
        effects = self.effects()
        folder = Folder(METADATA_TOPIC, 0, uuid.UUID(int=1).bytes, LogConfig(), self.disk)
        metadata = MetadataLog(PartitionLog.create(folder, effects), 1)
        for record in (
            metadata_records.cluster_record("a-cluster"),
            metadata_records.broker_start_record(0),
            metadata_records.broker_configs_record("", {"log.cleaner.enable": "true"}),
            metadata_records.topic_record(TOPIC),
            metadata_records.partitions_record(TOPIC, 3),
            metadata_records.configs_record(TOPIC, {"retention.ms": 5}),
            metadata_records.topic_record(OTHER),
            metadata_records.topic_deleted_record(OTHER),
            metadata_records.producer_ids_record(1000),
            metadata_records.scram_record("alice", SCRAM_SHA_256, CREDENTIAL),
            metadata_records.scram_record("bob", SCRAM_SHA_256, CREDENTIAL),
            metadata_records.scram_removed_record("bob", SCRAM_SHA_256),
            metadata_records.acl_record(ACL),
            metadata_records.acl_record(OTHER_ACL),
            metadata_records.acl_removed_record(OTHER_ACL),
        ):
            metadata.commit([record], effects)
        self.carry_out(effects)


def files_of(disk: SimDisk) -> dict[str, bytes]:
    """Return all files of the data directory, by path."""
    paths = [
        path
        for name in disk.list("")
        for path in ([f"{name}/{file}" for file in disk.list(name)] or [name])
    ]
    return {path: disk.read(path, 0, 1 << 20) for path in paths}


def stored_files() -> dict[str, bytes]:
    """Return the files of `at_rest.json`, by path."""
    stored: dict[str, dict[str, list[str]]] = json.loads(STORED.read_text())
    return {
        path: "".join(content["text"]).encode()
        if "text" in content
        else bytes.fromhex("".join(content["hex"]))
        for path, content in stored.items()
    }


def write_stored(files: dict[str, bytes]) -> None:
    """Write them down."""
    stored = {}
    for path, data in files.items():
        if data.isascii() and b"\0" not in data:
            stored[path] = {"text": data.decode().splitlines(keepends=True)}
        else:
            stored[path] = {"hex": [data[at : at + 40].hex() for at in range(0, len(data), 40)]}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


def stored_disk() -> SimDisk:
    """A disk with these files, all flushed."""
    disk = SimDisk()
    for path, data in stored_files().items():
        disk.apply(WriteFile(path, data))
    return disk


def test_the_same_bytes_are_written():
    written, stored = files_of(_Writer().disk), stored_files()
    assert written.keys() == stored.keys()
    for path, data in written.items():
        assert data == stored[path], path


def test_a_stored_log_is_opened_to_the_same_state():
    for clean in (True, False):
        for is_lost in (False, True):
            disk = stored_disk()
            known = KnownAtStart(clean_shutdown=clean, recovery_point=0 if is_lost else OFFSETS[2])
            effects = Effects(NOW_MS, 0)
            log = PartitionLog.load(Folder("orders", 0, TOPIC_ID, CONFIG, disk), known, effects)
            if clean or not is_lost:
                assert effects.storage == []
            assert (log.log_start_offset, log.last_stable_offset, log.log_end_offset) == OFFSETS
            assert [
                (v.producer_id, v.producer_epoch, v.last_sequence, v.coordinator_epoch)
                for v in log.producers()
            ] == PRODUCERS
            assert [log.end_offset_for_epoch(epoch) for epoch in (0, 5)] == EPOCH_ENDS
            read = log.read(0, max_bytes=1 << 20, read_committed=True, at_least_one_batch=True)
            assert [(a.producer_id, a.first_offset, a.last_offset) for a in read.aborted or ()] == (
                ABORTED
            )
            assert log.offset_for_timestamp(NOW_MS + 100) == BY_TIMESTAMP


def test_stored_checkpoints_are_read():
    disk = stored_disk()
    for path in (LOG_START_FILE, CLEANER_FILE):
        file, effects = OffsetCheckpointFile(path, disk), Effects(NOW_MS, 0)
        file.load({"orders": 2}.__getitem__, effects)
        assert (file.offsets, file.is_damaged) == ({("orders", 0): 3, ("orders", 1): 4}, False)
        assert effects.storage == []
    assert decode_stray(stored_files()[STRAY_PATH]) == STRAY_OFFSETS


def test_stored_metadata_is_read():
    folder = Folder(METADATA_TOPIC, 0, uuid.UUID(int=1).bytes, LogConfig(), stored_disk())
    log = PartitionLog.load(folder, KnownAtStart(), Effects(NOW_MS, 0))
    metadata = MetadataLog(log, 1)
    metadata.load()
    changed = image.Topic(TOPIC.name, TOPIC.topic_id, 3, {"retention.ms": 5}, 0)
    acls = Acls()
    acls.add(ACL)
    assert metadata.image == image.ClusterImage(
        1, "a-cluster", {}, {}, 0, 1000, {"": {"log.cleaner.enable": "true"}},
        {TOPIC.name: changed}, {TOPIC.topic_id: TOPIC.name},
        {("alice", SCRAM_SHA_256): CREDENTIAL}, acls,
    )  # fmt: skip


if __name__ == "__main__":
    write_stored(files_of(_Writer().disk))
