"""Rules for a batch's source offsets before they are committed for a group. Pure.

With `kafka.group.id` every Kafka source has to read the cluster that the sink writes to, each
partition once; without it the checkpoint alone keeps the query exactly-once, and all is allowed.
"""

from __future__ import annotations

from txnlog_spark.commit.checkpoint import BatchOffsets
from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.errors import OptionError, WrongCluster
from txnlog_spark.offsets import positions_digest

GROUP_OPTION = "kafka.group.id"


def check_sources(options: CommitOptions, sources: BatchOffsets, cluster_id: str) -> None:
    """Raise OptionError and WrongCluster for offsets that the group must not be moved to.

    `cluster_id` is the sink's, "" when its brokers do not tell.
    """
    group_id = options.group_id
    for source in sources.sources:
        note = source.note
        starts = note is not None and note.group_start != ""
        has_group = options.read_group_id is not None
        read_by = note.group_id if note is not None and (starts or has_group) else None
        if read_by is not None and read_by != options.read_group_id:
            why = "(startingOffsets=committed)" if starts else "(on the reader)"
            raise OptionError(
                GROUP_OPTION,
                group_id,
                f"set it to {read_by!r} for the writer as well: the query reads with that group "
                f"{why}, and the sink has to commit its offsets",
            )
    if group_id is None:
        return
    _check_cluster(group_id, sources, cluster_id)
    if twice := sources.read_differently:
        raise OptionError(
            GROUP_OPTION,
            group_id,
            f"remove it from the writer: two sources of the query read {twice[0]} up to different "
            "offsets, and a group has one position in a partition. A union of two selections of "
            "one load() reads both up to the same offsets; a join of it with itself does not. The "
            "query stays exactly-once by its checkpoint",
        )
    if not sources.is_whole:
        _check_start(group_id, sources)


def _check_cluster(group_id: str, sources: BatchOffsets, cluster_id: str) -> None:
    for source in sources.sources:
        if source.note is None or not source.offsets or not cluster_id:
            continue
        if source.note.cluster_id != cluster_id:
            topics = ", ".join(sorted({p.topic for p in source.offsets}))
            raise WrongCluster(
                f"{GROUP_OPTION}={group_id!r} works on one cluster only: the source of {topics} "
                f"reads cluster {source.note.cluster_id}, the sink writes to cluster {cluster_id}, "
                "and the offsets of one mean nothing on the other. Nothing was written. Remove "
                f"{GROUP_OPTION} from the writer and the reader: the query stays exactly-once by "
                "its checkpoint"
            )


def _check_start(group_id: str, sources: BatchOffsets) -> None:
    """A start from committed offsets does not hold for what has none, such as a source of files."""
    starts = {each.note.group_start for each in sources.sources if each.note is not None}
    if starts <= {"", positions_digest({})}:
        return
    raise OptionError(
        "startingOffsets",
        "committed",
        f"the query has a source besides that is not a Kafka topic: with a new checkpoint it is "
        f"read from its beginning again, while group {group_id!r} goes on where it was, so its "
        "records would be in the output twice. Restore the checkpoint; or remove what that source "
        "has delivered before",
    )


def pins_records(group_id: str | None, sources: BatchOffsets) -> bool:
    """Whether equal source offsets are equal records: Kafka's offsets, each partition once.

    Offsets of another source's connector may have the same shape; they count as Kafka's when our
    source noted its cluster, or when they are committed for a group, which checks them.
    """
    known = all(s.note is not None or group_id is not None for s in sources.sources)
    return sources.is_whole and known


def noted_group(sources: BatchOffsets) -> str | None:
    """The reader's group, None when it has none or did not note it."""
    return next((s.note.group_id for s in sources.sources if s.note and s.note.group_id), None)
