"""The logs of this broker: opened, created, flushed, removed; the checkpoints of their offsets.

Kafka's `LogManager`. Which partitions there are is the image's business, what is appended the
replica manager's.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from broker_sim.core.config import (
    INT64_MAX,
    BrokerConfig,
    ConfigValue,
    DataDirectoryError,
    topic_config_value,
)
from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Delete, Effects, Flush, Rename, Storage, Volume, WriteFile
from broker_sim.core.log import (
    DELETED_SUFFIX,
    DamagedLog,
    Folder,
    InconsistentTopicId,
    KnownAtStart,
    LogConfig,
    PartitionLog,
    stray_directory_name,
)
from broker_sim.core.log.compression import Codecs
from broker_sim.core.log.files import PARTITION_METADATA, directory_name, read_whole
from broker_sim.core.log.offset_checkpoint import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    STRAY_FILE,
    OffsetCheckpointFile,
    decode_offsets,
    decode_stray,
    encode_offsets,
    encode_stray,
)
from broker_sim.core.log.segment import LOG_SUFFIX
from broker_sim.core.replica.changes import Changes
from txnlog_kafka.wire.topic_partition import INTERNAL_TOPICS, METADATA_TOPIC, TopicPartition

METADATA_TOPIC_ID = uuid.UUID(int=1)
"""Kafka's reserved id of the metadata topic."""

METADATA_CONFIGS: dict[str, ConfigValue] = {
    "cleanup.policy": "delete",
    "retention.ms": -1,
    "retention.bytes": -1,
    "max.message.bytes": 2**31 - 1,
    "segment.bytes": 1 << 30,
}
"""Configuration of the metadata log, without the limits of clients' topics: the changes of a
request are a single batch of any size, and a refused batch would end the broker."""

_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")

CHECKPOINT_LOGS = 20
"""Recovery points that are moved in one step: some 5 ms each on a disk."""
STRAY_LOG = "stray-log"
"""The kind of the trace of a log that was set aside; hosts warn of it."""


def partition_of_directory(name: str) -> TopicPartition | None:
    """Whose log a directory would be, by its name; None for the metadata log's, too."""
    match = _DIRECTORY.fullmatch(name)
    if match is None or match["topic"] == METADATA_TOPIC:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def has_log(directory: str, storage: Storage) -> bool:
    """By its files: a cluster's directories `broker-0` are not of a topic `broker`."""
    files = storage.list(directory)
    return PARTITION_METADATA in files or any(file.endswith(LOG_SUFFIX) for file in files)


def log_config(topic: Topic, config: BrokerConfig) -> LogConfig:
    """A topic's effective configuration, as its logs take it."""

    def value(name: str) -> ConfigValue:
        return topic_config_value(name, topic.configs, config)

    # A field has the name of its option, and a default of its type.
    options: dict[str, Any] = {
        name: type(default)(value(name.replace("_", ".")))
        for name, default in dataclasses.asdict(LogConfig()).items()
        if name != "producer_id_expiration_ms"  # of the broker, not of a topic
    }
    options["producer_id_expiration_ms"] = config.integer("producer.id.expiration.ms")
    segment_bytes = topic.configs.get("internal.segment.bytes", options["segment_bytes"])
    options["segment_bytes"] = int(segment_bytes)
    if options["flush_ms"] == INT64_MAX:  # not set: as often as the scheduler looks
        options["flush_ms"] = config.integer("log.flush.scheduler.interval.ms")
    return LogConfig(**options)


def _has_other_replicas(topic: Topic, partition: int) -> bool:
    return partition < len(topic.partitions) and len(topic.partitions[partition].replicas) > 1


_PUT_BACK = (
    "Nothing was changed: stop all brokers and put the newest one back. If there is no copy, begin "
    "a new cluster with empty directories; `python -m broker_sim dump --deep` shows what is in the "
    "logs of this one"
)
"""There is no going on with an older copy: it would give leader epochs and producer ids again."""


def _check_leader_epoch(log: PartitionLog, registration: PartitionRegistration) -> None:
    """A leader's epoch is in the metadata before it appends anything, and the image has all of it.

    Raises DataDirectoryError. With a higher one in the log two leaders would give the same epoch
    to different records, and what differs after that is never truncated.
    """
    if log.latest_epoch > registration.leader_epoch:
        raise DataDirectoryError(
            f"{log.directory} has records of leader epoch {log.latest_epoch}, and the registry's "
            f"metadata log has none above {registration.leader_epoch}: the registry was started "
            f"with an older copy of its data directory. {_PUT_BACK}. If this is the newest, a bit "
            f"of the log has changed: move {log.directory} away while another broker leads the "
            "partition, and it is fetched again"
        )


class LogManager:
    """Every partition's log, by its name."""

    def __init__(
        self,
        config: BrokerConfig,
        storage: Storage,
        codecs: Codecs,
        metadata_read: Callable[[], int],
    ) -> None:
        """`metadata_read` is how far the registry's log was read, 0 where a broker is alone."""
        self._config = config
        self._storage = storage
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._codecs = codecs
        self.changes = Changes()
        """Since `ReplicaManager.take_changes`."""
        self._log_starts = OffsetCheckpointFile(LOG_START_FILE, storage)
        self._metadata_log: PartitionLog | None = None
        self._names: set[str] = set()
        """Names in the data directory at start."""
        self._recovery_points: dict[tuple[str, int], int] = {}
        """Recovery points as the file has them."""
        self._to_checkpoint: deque[PartitionLog] = deque()
        """Logs that the checkpoint under way still has to move."""
        self._high_watermarks = OffsetCheckpointFile(HIGH_WATERMARK_FILE, storage)
        """High watermarks of partitions with several replicas, and how far the metadata was read; a
        broker that is alone has no such file."""
        self._metadata_read = metadata_read
        self.cleaned = OffsetCheckpointFile(CLEANER_FILE, storage)
        """Up to where the cleaner has compacted each log."""
        self._checkpoints = (self._log_starts, self._high_watermarks, self.cleaned)

    # ------------------------------------------------------------------ life

    def open_metadata_log(self, *, clean_shutdown: bool, effects: Effects) -> PartitionLog:
        """The log of the metadata itself, which is in no image. The first to be opened."""
        self.load_recovery_points(effects)
        topic = Topic(METADATA_TOPIC, METADATA_TOPIC_ID, 1, METADATA_CONFIGS, 0)
        known = self._known(topic, 0, clean_shutdown=clean_shutdown, leader_epoch=0)
        self._metadata_log = self._open_log(topic, 0, known, effects)
        return self._metadata_log

    def load_recovery_points(self, effects: Effects) -> None:
        """Before any log is opened."""
        offsets = decode_offsets(read_whole(self._storage, RECOVERY_POINT_FILE) or b"")
        if offsets is None:
            # As in Kafka: nothing is known to be flushed, so everything is read.
            effects.trace("damaged-file", path=RECOVERY_POINT_FILE, reason="it is not a checkpoint")
        self._recovery_points = offsets or {}

    def open_all(self, image: ClusterImage, *, clean_shutdown: bool, effects: Effects) -> None:
        """At start: load what is there, create what is missing, set aside what nobody knows."""
        self._names = set(self._storage.list(""))
        self._log_starts.load(image.partition_count, effects)
        self._high_watermarks.load(
            lambda topic: 1 if topic == METADATA_TOPIC else image.partition_count(topic), effects
        )
        self._check_metadata_read()
        self.cleaned.load(image.partition_count, effects)
        self._find_strays(image, effects)
        if self.cleaned.is_damaged:
            self._take_all_for_cleaned(image, effects)
        for topic in image.topics.values():
            for partition in image.hosted(topic):
                leader_epoch = image.leader_epoch(topic)
                if topic.partitions:  # an image from before may not know the newest
                    leader_epoch = INT64_MAX
                if clean_shutdown and not _has_other_replicas(topic, partition):
                    self._check_directory(topic, partition)
                known = self._known(
                    topic, partition, clean_shutdown=clean_shutdown, leader_epoch=leader_epoch
                )
                log = self._open_log(topic, partition, known, effects)
                # A process that was killed may have left records that it was about to flush.
                log.flush_if_many(effects)
                if topic.partitions:
                    _check_leader_epoch(log, topic.partitions[partition])
                else:
                    log.become_leader(leader_epoch)
                self._logs[TopicPartition(topic.name, partition)] = log

    def create(
        self, topic: Topic, partitions: Iterable[int], image: ClusterImage, effects: Effects
    ) -> None:
        """Empty logs for these partitions, which are already in the metadata log."""
        for partition in partitions:
            log = PartitionLog.create(self._folder(topic, partition), effects)
            if not topic.partitions:
                log.become_leader(image.leader_epoch(topic))
            self._logs[TopicPartition(topic.name, partition)] = log

    def delete(self, topic: Topic, effects: Effects) -> None:
        """Remove the logs of a topic that is no longer in the metadata log."""
        for offsets in self._checkpoints:
            offsets.forget_topic(topic.name, effects)
        for partition in range(topic.partition_count):
            log = self._logs.pop(TopicPartition(topic.name, partition), None)
            if log is not None:
                log.delete(effects)

    def delete_partition(self, name: TopicPartition, effects: Effects) -> None:
        """Remove one log; its topic stays, on other brokers."""
        self._forget_log(name, effects)
        log = self._logs.pop(name, None)
        if log is not None:
            log.delete(effects)

    def _forget_log(self, name: TopicPartition, effects: Effects) -> None:
        for offsets in self._checkpoints:
            offsets.forget(*name, effects)

    def lower_checkpoints(self, name: TopicPartition, offset: int, effects: Effects) -> None:
        """The log is about to be truncated to the offset."""
        for offsets in self._checkpoints:
            offsets.lower(*name, offset, effects)

    def reconfigure(self, topic: Topic) -> None:
        """Appends from here on obey the topic's present configuration."""
        config = log_config(topic, self._config)
        for partition in range(topic.partition_count):
            log = self._logs.get(TopicPartition(topic.name, partition))
            if log is not None:
                log.config = config

    def close(self, effects: Effects) -> None:
        """A clean stop: everything flushed, all states written, the recovery points last."""
        self.checkpoint_high_watermarks(effects)
        for log in self._all_logs():
            log.close(effects)
        self._write_recovery_points(effects)

    def checkpoint(self, effects: Effects) -> bool:
        """Move the recovery points of some logs; whether others are left, for the next step.

        Each of them is flushed, and while a step is carried out nobody is answered. The file of the
        points is written behind the last of them: a crash before it costs recovery some time.
        """
        if not self._to_checkpoint:
            self._to_checkpoint.extend(self._all_logs())
        moved = 0
        while self._to_checkpoint and moved < CHECKPOINT_LOGS:
            log = self._to_checkpoint.popleft()
            if log is self._logs.get(log.name) or log is self._metadata_log:
                moved += log.checkpoint(effects)
        if self._to_checkpoint:
            return True
        self._write_recovery_points(effects)
        return False

    def checkpoint_high_watermarks(self, effects: Effects) -> None:
        """Write those of logs that have several replicas, where one has moved."""
        reached: dict[tuple[str, int], int] = {
            name: log.high_watermark for name, log in self._logs.items() if not log.single_replica
        }
        if read := self._metadata_read():
            reached[METADATA_TOPIC, 0] = read
        known = self._high_watermarks.offsets
        if any(known.get(name) != offset for name, offset in reached.items()):
            self._high_watermarks.put(reached, effects)

    def apply_retention(self, effects: Effects, *, compacted: bool) -> None:
        """Remove old segments of all logs that are compacted, or that are not."""
        for name, log in self.items():
            if log.config.compacts is compacted and log.apply_retention(effects):
                self.changes.add(name)

    def flush_due(self, effects: Effects) -> None:
        """Flush the logs whose flush.ms has passed."""
        for log in self._all_logs():
            log.flush_if_due(effects)

    def volume(self) -> Volume | None:
        """Return the volume of the logs; None when the file system cannot be asked."""
        return self._storage.volume()

    # ------------------------------------------------------------------ the logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, None where there is no such partition."""
        return self._logs.get(TopicPartition(topic, partition))

    def items(self) -> Iterable[tuple[TopicPartition, PartitionLog]]:
        """Return the logs of all partitions."""
        return self._logs.items()

    def flush(self, logs: Iterable[PartitionLog], effects: Effects) -> None:
        """Make what was appended to these logs durable."""
        dirty = [log for log in logs if log.flush_paths()]
        if dirty:
            effects.storage.append(Flush(tuple(p for log in dirty for p in log.flush_paths())))
            for log in dirty:
                log.flushed(effects)

    def remove_below_starts(self, logs: Collection[PartitionLog], effects: Effects) -> None:
        """Make the moved starts of these logs durable, then remove the files below them.

        The logs are flushed before, so no log ever ends below its start: if it does, one of the two
        is damaged.
        """
        self.flush(logs, effects)
        self._log_starts.put({log.name: log.log_start_offset for log in logs}, effects)
        for log in logs:
            log.remove_below_start(effects)
            self.changes.add(log.name)

    # ------------------------------------------------------------------ details

    def _all_logs(self) -> list[PartitionLog]:
        metadata = [] if self._metadata_log is None else [self._metadata_log]
        return [*metadata, *self._logs.values()]

    def _take_all_for_cleaned(self, image: ClusterImage, effects: Effects) -> None:
        """Treat all logs as compacted: which of them may have gaps is no longer known.

        This is written at once, because the next entry of another log makes the file look intact.
        """
        every = [
            (t.name, number) for t in image.topics.values() for number in range(t.partition_count)
        ]
        self.cleaned.put(dict.fromkeys(every, 0), effects)

    def _write_recovery_points(self, effects: Effects) -> None:
        points: dict[tuple[str, int], int] = {
            log.name: log.recovery_point for log in self._all_logs()
        }
        if points != self._recovery_points:
            self._recovery_points = points
            effects.storage.append(WriteFile(RECOVERY_POINT_FILE, encode_offsets(points)))

    def _known(
        self,
        topic: Topic,
        partition: int,
        *,
        clean_shutdown: bool,
        leader_epoch: int,
    ) -> KnownAtStart:
        has_others = _has_other_replicas(topic, partition)
        return KnownAtStart(
            recovery_point=self._recovery_points.get((topic.name, partition), 0),
            clean_shutdown=clean_shutdown,
            leader_epoch_max=leader_epoch,
            log_start_offset=self._log_starts.offsets.get((topic.name, partition), 0),
            was_cleaned=(topic.name, partition) in self.cleaned.offsets,
            # What these logs say was decided, and answered: a part of it may not be forgotten.
            may_truncate=has_others or topic.name not in (METADATA_TOPIC, *INTERNAL_TOPICS),
            has_other_replicas=has_others,
            high_watermark=self._high_watermarks.offsets.get((topic.name, partition), 0),
        )

    def _open_log(
        self, topic: Topic, partition: int, known: KnownAtStart, effects: Effects
    ) -> PartitionLog:
        folder = self._folder(topic, partition)
        try:
            log = PartitionLog.load(folder, known, effects)
        except InconsistentTopicId as error:
            if not topic.partitions:
                raise DataDirectoryError(str(error)) from error
            # The topic was deleted and created again while this broker of a cluster was down.
            self._set_aside(folder.directory, TopicPartition(topic.name, partition), effects)
            return PartitionLog.create(folder, effects)
        except DamagedLog as error:
            raise DataDirectoryError(str(error)) from error
        if known.has_other_replicas:  # it may have been cut at damage
            self.lower_checkpoints(log.name, log.log_end_offset, effects)
        return log

    def _check_directory(self, topic: Topic, partition: int) -> None:
        """After a clean stop nothing is left to repair: what is missing was taken away."""
        directory = directory_name(topic.name, partition)
        if not self._storage.list(directory):
            raise DataDirectoryError(
                f"the directory {directory} is missing, though the last stop was clean: put it "
                "back, or remove .kafka_cleanshutdown to start with that partition empty"
            )

    def _folder(self, topic: Topic, partition: int) -> Folder:
        return Folder(
            topic=topic.name,
            partition=partition,
            topic_id=topic.topic_id.bytes,
            config=log_config(topic, self._config),
            storage=self._storage,
            codecs=self._codecs,
            is_replicated=bool(topic.partitions),
        )

    def _check_metadata_read(self) -> None:
        """Before anything is set aside for metadata that has forgotten it."""
        before = self._high_watermarks.offsets.get((METADATA_TOPIC, 0), 0)
        if self._metadata_read() < before:
            raise DataDirectoryError(
                f"the registry's metadata log ends at offset {self._metadata_read()}, and this "
                f"broker had read up to {before}: the registry was started with an older copy of "
                f"its data directory. {_PUT_BACK}"
            )

    def _find_strays(self, image: ClusterImage, effects: Effects) -> None:
        """Remove leftovers of a deletion; set aside the log of a partition that the metadata does
        not have on this broker. As in Kafka the log stays, because the metadata may be older."""
        for name in sorted(self._names):
            if name.endswith(DELETED_SUFFIX):
                effects.trace("remove-deleted", directory=name)
                effects.storage.append(Delete(name))
            elif (partition := partition_of_directory(name)) is not None:
                self._take_back_offsets(name, partition, effects)
                topic = image.topics.get(partition.topic)
                is_hosted = topic is not None and partition.partition in image.hosted(topic)
                if not is_hosted and has_log(name, self._storage):
                    self._set_aside(name, partition, effects)
        for offsets in self._checkpoints:
            offsets.forget_others(effects)

    def _take_back_offsets(self, directory: str, name: TopicPartition, effects: Effects) -> None:
        """Restore the offsets of a log that was set aside and has its name back. They replace the
        offsets of a log that had the name meanwhile."""
        path = f"{directory}/{STRAY_FILE}"
        data = read_whole(self._storage, path)
        if data is None:
            return
        if data:
            known = decode_stray(data)
            if known is None:
                effects.trace("corrupt-checkpoint", path=path)
                known = {CLEANER_FILE: 0}  # as of a log that may have been compacted
            self._forget_log(name, effects)
            for offsets in self._checkpoints:
                # One that is damaged may have no entry before all that need one have theirs.
                is_waiting = offsets is self.cleaned and self.cleaned.is_damaged
                if offsets.path in known and not is_waiting:
                    offsets.put({name: known[offsets.path]}, effects)
        # A removal may be lost with the power: what is there again then must say nothing.
        effects.storage += [WriteFile(path, b""), Delete(path)]

    def _set_aside(self, directory: str, name: TopicPartition, effects: Effects) -> None:
        having = (each for each in self._checkpoints if name in each.offsets)
        known = {each.path: each.offsets[name] for each in having}
        if self.cleaned.is_damaged:
            known[CLEANER_FILE] = 0
        effects.storage.append(WriteFile(f"{directory}/{STRAY_FILE}", encode_stray(known)))
        # Or the log of a topic of the same name would begin where this one did.
        self._forget_log(name, effects)
        stray = stray_directory_name(*name, self._names)
        self._names.add(stray)
        effects.trace(STRAY_LOG, directory=directory, renamed_to=stray,
                      note="the metadata does not have it here; remove the directory if it is "
                      "not needed")  # fmt: skip
        effects.storage.append(Rename(directory, stray))
