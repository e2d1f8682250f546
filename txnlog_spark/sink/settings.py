"""Options of a write as one typed value, with the rules between options checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import ConnectionSettings
from txnlog_spark.commit.output import NAME_BYTES_MAX
from txnlog_spark.commit.plan import CommitOptions, GroupOwner
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.write_formats import WriteFormat, write_formats
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options, settings_of
from txnlog_spark.staging.address import StagingSettings
from txnlog_spark.staging.frames import query_write
from txnlog_spark.staging.staged_files import StagedFiles
from txnlog_spark.storage.connect import StorageSettings
from txnlog_spark.storage.location import Location, read_location


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Options of a write, checked. `checkpoint` is None only for a batch write.

    A batch write has a `group_id` only with `source_offsets` to commit for it. A batch write with a
    checkpoint writes a micro-batch, `txn_version`, inside foreachBatch. Then `sink_name` tells
    several sinks of one query apart, `sink_run` names the run, and `sink_group` is the sink that
    commits the query's offsets, if it is another one.
    """

    connection: ConnectionSettings
    topic: str | None
    timestamp_column: str | None
    query_name: str | None
    group_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int
    compression: str
    record_batch_bytes_max: int
    staging_location: Location | None
    staging: StagingSettings
    checkpoint: Location | None
    overwrite_group_offsets: bool
    fail_on_data_loss: bool
    txn_app_id: str | None
    txn_version: int
    source_offsets: Mapping[TopicPartition, int]
    sink_name: str
    sink_run: str
    sink_group: GroupOwner | None
    storage: StorageSettings
    formats: Mapping[str, WriteFormat]
    """Formats by side, key or value; a binary side has no format."""

    @property
    def checkpoint_location(self) -> Location:
        """The checkpoint of a streaming query's sink."""
        return present(self.checkpoint, "a streaming sink has a checkpoint")

    @property
    def commit_options(self) -> CommitOptions:
        """The options that the commit needs."""
        return CommitOptions(
            group_id=self.group_id,
            transactional_id=self.transactional_id,
            topic=self.topic,
            sink_name=self.sink_name,
            owner=self.sink_group,
            overwrite_group=self.overwrite_group_offsets,
            fail_on_data_loss=self.fail_on_data_loss,
            transaction_timeout_ms=self.transaction_timeout_ms,
        )

    def staged_files(self) -> StagedFiles | None:
        """Return the storage of stagingLocation, None if it is not set. Raises OptionError."""
        location = self.staging_location
        return None if location is None else StagedFiles(location, self.storage)

    def write_name(self, query_id: str) -> str:
        """Name the staged rows of this sink's tasks in one query.

        Every task makes the name, so it contains the checkpoint's text, which is the same on all
        machines. The committer reads the name in the tasks' messages.
        """
        return query_write(self.checkpoint_location.text, query_id, self.sink_name)


def read_sink_settings(options: Mapping[str, str], *, streaming: bool) -> SinkSettings:
    """Read the settings of a `writeStream` or a `write`. Raises OptionError."""
    values = parse_options(options, Use.WRITE_STREAM if streaming else Use.WRITE_BATCH)
    checkpoint = values.get("checkpointLocation")
    if streaming and checkpoint is None:
        raise OptionError(
            "checkpointLocation",
            None,
            'set it with writeStream.option("checkpointLocation", ...): '
            "spark.sql.streaming.checkpointLocation of the session is not passed to a sink, "
            "and the exactly-once commit reads Spark's offset log there",
        )
    transactional_id = values["kafka.transactional.id"]
    if transactional_id and len(transactional_id.encode()) > NAME_BYTES_MAX:
        raise OptionError(
            "kafka.transactional.id", transactional_id, f"at most {NAME_BYTES_MAX} bytes"
        )
    staging = values["stagingLocation"]
    if not streaming:
        _check_batch_write(values)
    given = settings_of(values, "write") | {
        "staging_location": None if staging is None else read_location("stagingLocation", staging),
        "checkpoint": (
            None if checkpoint is None else read_location("checkpointLocation", checkpoint)
        ),
        "txn_version": values.get("txnVersion") or 0,
        "source_offsets": values.get("sourceOffsets") or {},
        "sink_name": values.get("sinkName") or "",
        "sink_run": values.get("sinkRun") or "",
        "sink_group": _owner(values.get("sinkGroup")),
    }
    return SinkSettings(
        **given,
        connection=ConnectionSettings.from_values(values, writes=True),
        staging=StagingSettings(**settings_of(values, "staging")),
        storage=StorageSettings.from_values(values),
        formats=write_formats(values),
    )


def _owner(text: str | None) -> GroupOwner | None:
    if text is None:
        return None
    name, _, group_id = text.partition(":")
    return GroupOwner(name, group_id)


def _check_batch_write(values: Mapping[str, Any]) -> None:
    """Check the rules between the options of `write`. Raises OptionError."""
    app_id, version = values["txnAppId"], values["txnVersion"]
    offsets, group_id = values["sourceOffsets"], values["kafka.group.id"]
    if values["checkpointLocation"] is not None:
        if version is None:
            raise OptionError(
                "checkpointLocation",
                values["checkpointLocation"],
                "remove it: a batch write has no checkpoint (inside foreachBatch use "
                "txnlog_spark.foreach_batch)",
            )
        return
    if app_id is not None and version is None:
        raise OptionError("txnVersion", None, "set it: txnAppId needs a version, which must rise")
    if version is not None and app_id is None:
        raise OptionError(
            "txnAppId", None, "set it: txnVersion counts the writes of an application"
        )
    if group_id is not None and offsets is None:
        raise OptionError(
            "kafka.group.id",
            group_id,
            "remove it, or set sourceOffsets: a batch write does not know up to which offsets its "
            "rows were read",
        )
    if offsets is not None and group_id is None:
        raise OptionError("kafka.group.id", None, "set it: sourceOffsets are committed for a group")
    for partition, position in (offsets or {}).items():
        if position < 0:
            raise OptionError(
                "sourceOffsets", position, f"give the next offset to read of {partition}, 0 or more"
            )
