"""A query as it is deployed: its source, its options, its checkpoints, and its drivers so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simulation.hosts.checkpoint import Checkpoint, Files
from simulation.hosts.query_rows import (
    DriverHistory,
    Offsets,
    Source,
    ends_of,
    rows_of,
    written_as,
)
from txnlog_spark.commit.output import Output, moved_or_copied
from txnlog_spark.commit.plan import CommitOptions


@dataclass(slots=True)
class Deployment:
    """A query with the names of everything that it writes, which readers and checks ask for."""

    name: str
    source: Source
    options: CommitOptions
    """Options of the query now; its transactional id and its topic may change."""
    files: Files
    """Store of all checkpoints."""
    changes_topic: bool = False
    """True if the query may change to its second topic."""
    may_be_copied: bool = False
    """True if a copy of the checkpoint may become a query of its own."""
    original: Deployment | None = None
    """Query from whose checkpoint this query's checkpoint was copied."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Checkpoints in the order in which they were begun; a copy of a query comes with its first."""
    begins: Offsets = field(default_factory=dict)
    """Start of a copy's query; other queries start at the first row."""
    was_copied: bool = False
    """True if a copy of the checkpoint has become a query of its own."""
    history: DriverHistory = field(default_factory=DriverHistory)
    finished: Checkpoint | None = None
    """Checkpoint whose query came to the input's end."""
    _noted_by_original: int = -1
    """Last batch that the original had done when its checkpoint was copied."""
    _id_count: int = 0
    _move_count: int = 0

    def __post_init__(self) -> None:
        if not self.checkpoints:
            self.new_checkpoint(starts_committed=False)
        elif self.original is not None:
            self._noted_by_original = max(self.newest.batches("commits"), default=-1)
            self.begins = ends_of(self.newest, self._noted_by_original)

    @property
    def newest(self) -> Checkpoint:
        """Checkpoint that was begun last."""
        return self.checkpoints[-1]

    def new_checkpoint(self, *, starts_committed: bool) -> Checkpoint:
        """Begin another checkpoint: the newest from now on."""
        number = len(self.checkpoints) + 1
        made = Checkpoint(
            f"{self.name}-checkpoint-{number}",
            f"{self.name}-query-{number}",
            self.files,
            starts_committed=starts_committed,
        )
        self.checkpoints.append(made)
        return made

    # ------------------------------------------------------------------ sinks and their topics

    @property
    def sinks(self) -> tuple[CommitOptions, ...]:
        """Sinks of the query. Of a function's two, only the last commits the group's offsets."""
        if self.source.settings.sinks == 1:
            return (self.options,)
        first = replace(self.options, sink_name="first", group_id=None, topic=self.second_topic)
        return first, replace(self.options, sink_name="last")

    @property
    def second_topic(self) -> str:
        """Topic of a second sink, or the topic that the query changes to."""
        return f"{self.source.output_topic}-2"

    @property
    def lineages(self) -> list[list[str]]:
        """Lists of topics; the topics of a list together have each row once."""
        topics = [self.source.output_topic]
        if self.changes_topic:
            return [[*topics, self.second_topic]]
        return [topics] if len(self.sinks) == 1 else [topics, [self.second_topic]]

    @property
    def sharing(self) -> str | None:
        """Name of another query that may write to the same topic: a copy, or its original."""
        if self.original is not None:
            return self.original.name
        return f"copy-{self.name}" if self.was_copied else None

    def last_written(self, checkpoint: Checkpoint) -> int:
        """Return the last batch that this query has to write; -1 for no batch.

        The original's batches do not count, nor do batches without rows that the function for
        foreachBatch leaves out.
        """
        own = (n for n in checkpoint.planned if n > self._noted_by_original)
        leaves_out = self.source.settings.leaves_out
        return max((n for n in own if not leaves_out or rows_of(checkpoint, n)), default=-1)

    # ------------------------------------------------------------------ groups that hold progress

    def progress_groups(self) -> dict[str, str]:
        """Return the group that holds progress, by query and sink."""
        return {
            written_as(each.query_id, sink): self.progress_group_at(each, sink)
            for each in self.checkpoints
            for sink in self.sinks
        }

    def progress_group_at(self, checkpoint: Checkpoint, sink: CommitOptions) -> str:
        """Return the group that holds the progress of one sink of a checkpoint's query."""
        copy = "" if self.original is None else _copy_at(checkpoint.location)
        return sink.progress_group_of(checkpoint.query_id, copy)

    def progress_group(self) -> str:
        """Return the group that holds the newest checkpoint's progress."""
        return self.progress_group_at(self.newest, self.sinks[-1])

    def groups(self) -> tuple[str, ...]:
        """Return the source's group and the groups that hold progress."""
        return (str(self.options.group_id), *self.progress_groups().values())

    def done_batches(self) -> dict[str, int]:
        """Return the batch after the last that was reported as done, by group with progress."""
        return {
            group: 0 if self.is_rolled_back(group) else self.history.done.get(query, 0)
            for query, group in self.progress_groups().items()
        }

    def is_rolled_back(self, group_id: str) -> bool:
        """True if the group has the progress of a checkpoint whose batch ids have begun again."""
        return any(
            each.is_rolled_back and self.progress_group_at(each, sink) == group_id
            for each in self.checkpoints
            for sink in self.sinks
        )

    # ------------------------------------------------------------------ changes

    def change_id(self) -> None:
        """Give the query another transactional id."""
        self._id_count += 1
        name = f"{self.name}-id-{self._id_count}"
        self.options = replace(self.options, transactional_id=name)

    def take_own_id(self) -> None:
        """Give the query an id that no other query has, unless it takes the id of its group."""
        if self.options.transactional_id is not None:
            self.options = replace(self.options, transactional_id=f"{self.name}-own")

    def change_topic(self) -> None:
        """Let the query write to its other topic."""
        topics = {self.source.output_topic, self.second_topic} - {str(self.options.topic)}
        self.options = replace(self.options, topic=topics.pop())

    def move(self) -> None:
        """Move the newest checkpoint to another place."""
        self._move_count += 1
        self.checkpoints[-1] = self.newest.moved_to(f"{self.name}-moved-{self._move_count}")


def _copy_at(location: str) -> str:
    """Return the name of a copy at this location, as the error message has it."""
    original, copied = Output("", "the original", transactional_id="a"), Output("", location)
    return moved_or_copied(copied, original, original_is_there=True, is_same_group=False).copy
