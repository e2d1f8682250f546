"""What the options of a write say, as one typed value, with the rules between options checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txnlog_spark.connection import ConnectionSettings
from txnlog_spark.errors import OptionError
from txnlog_spark.options import Use, parse_options

TRANSACTIONAL_ID_BYTES_MAX = 249
"""Kafka sets no limit of its own; this is the one on topic names, and keeps log lines short."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """A write's options, checked. `checkpoint` is None for a batch write only.

    `group_id` is None for a batch write: it has no source offsets to commit, and the transactional
    id that is made from a group belongs to the group's streaming query.
    """

    connection: ConnectionSettings
    topic: str | None
    timestamp_column: str | None
    group_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int
    compression: str
    record_batch_bytes_max: int
    staging_location: Path | None
    checkpoint: Path | None

    def transactional_id_of(self, query_id: str) -> str:
        """The option, else one made from the group id, else from the query id."""
        if self.transactional_id is not None:
            return self.transactional_id
        return f"txnlog-{self.group_id or query_id}"

    def progress_group_of(self, query_id: str) -> str:
        """The group that holds this query's progress and nothing else."""
        owner = self.group_id or self.transactional_id_of(query_id)
        return f"{owner}.progress.{query_id}"


def read_sink_settings(options: Mapping[str, str], *, streaming: bool) -> SinkSettings:
    """The settings of a `writeStream` or a `write`. Raises OptionError."""
    values = parse_options(options, Use.WRITE_STREAM if streaming else Use.WRITE_BATCH)
    checkpoint = values.get("checkpointLocation")
    if streaming and checkpoint is None:
        raise OptionError(
            "checkpointLocation",
            None,
            'set it with writeStream.option("checkpointLocation", ...): '
            "spark.sql.streaming.checkpointLocation of the session is not told to a sink, "
            "and the exactly-once commit reads Spark's offset log there",
        )
    transactional_id = values["kafka.transactional.id"]
    if transactional_id and len(transactional_id.encode()) > TRANSACTIONAL_ID_BYTES_MAX:
        raise OptionError(
            "kafka.transactional.id",
            transactional_id,
            f"at most {TRANSACTIONAL_ID_BYTES_MAX} bytes",
        )
    staging = values["stagingLocation"]
    return SinkSettings(
        connection=ConnectionSettings.from_values(values),
        topic=values["topic"],
        timestamp_column=values["timestampColumn"],
        group_id=values["kafka.group.id"] if streaming else None,
        transactional_id=transactional_id,
        transaction_timeout_ms=values["kafka.transaction.timeout.ms"],
        compression=values["kafka.compression.type"],
        record_batch_bytes_max=values["kafka.max.request.size"],
        staging_location=None if staging is None else local_path("stagingLocation", staging),
        checkpoint=None if checkpoint is None else local_path("checkpointLocation", checkpoint),
    )


def local_path(option: str, location: str) -> Path:
    """The path of a plain path or a `file:` URI, as Hadoop's `Path` reads it: nothing is decoded.

    (`file:/a%20b` is a directory with a percent sign, and so Spark writes its checkpoint there.)
    Other file systems are refused: staged batches and the identity file need an atomic rename and
    an fsync, and a copy that appears late would look like a batch that never was. A mounted shared
    directory is fine. Raises OptionError.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location).absolute()
    path = rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest
    is_local = path.startswith("/") and (not path.startswith("//") or path.startswith("///"))
    if scheme.lower() == "file" and is_local:
        return Path("/" + path.lstrip("/"))
    raise OptionError(
        option, location, "a path or file: URI on a disk that driver and executors share"
    )
