"""Mishaps of a restart: to a query's checkpoint and its options, by the scenario's chances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulation.hosts.checkpoint import Checkpoint
from txnlog_spark.commit.plan import CommitOptions

if TYPE_CHECKING:
    from simulation.load.operator import Operator

STARTED_BY_THE_OLD = 0.7
"""Share of the new transactional ids that an old deployment meets with the old id."""


@dataclass(slots=True)
class Mishaps:
    """The mishaps of one operator's query."""

    operator: Operator
    old_deployment: tuple[Checkpoint, Sequence[CommitOptions]] | None = None
    """The deployment that starts a driver of its own beside the next one."""
    _id_count: int = 0
    _move_count: int = 0

    def happen(self) -> Checkpoint | None:
        """Let one happen, or none; return the checkpoint to start with, None for the newest."""
        operator = self.operator
        newest, chance = operator.checkpoints[-1], operator.faults.random()
        chances = operator.chances.operator
        limits = (
            (chances.checkpoint_lost, self._lose_checkpoint),
            (chances.tail_lost, self._lose_tail),
            (chances.old_checkpoint, self._old_checkpoint),
            (chances.id_change, self._change_id),
            (chances.topic_change, self.change_topic),
            (chances.moved, self._move),
            (chances.logs_lost, self._lose_logs),
            (chances.backup_restored, self._restore_backup),
        )
        for limit, happen in limits:
            if chance < limit:
                return happen(newest)
            chance -= limit
        return None

    def _lose_checkpoint(self, _: Checkpoint) -> Checkpoint:
        self.operator.trace.count("checkpoint lost")
        return self.operator.new_checkpoint(starts_committed=True)

    def _lose_tail(self, newest: Checkpoint) -> None:
        """With the machine that wrote it: a driver that lives does not lose its plan."""
        operator, batches = self.operator, len(newest.batches("offsets"))
        if batches > 1:
            operator.trace.count("checkpoint tail lost")
            operator.end_zombies(newest)
            newest.lose_tail(min(operator.faults.randint(1, 2), batches - 1), operator.faults)

    def _lose_logs(self, newest: Checkpoint) -> None:
        self.operator.trace.count("logs lost")
        self.operator.end_zombies(newest)
        newest.lose_logs(self.operator.faults)

    def _restore_backup(self, newest: Checkpoint) -> None:
        """No driver lives while a backup is restored: that is a condition of the guarantee."""
        self.operator.trace.count("backup restored")
        self.operator.end_zombies(newest)
        newest.restore_backup(self.operator.faults)

    def _old_checkpoint(self, _: Checkpoint) -> Checkpoint:
        operator = self.operator
        found = operator.faults.choice(operator.checkpoints)
        if found is not operator.checkpoints[-1]:
            operator.trace.count("old checkpoint started")
        return found

    def _change_id(self, newest: Checkpoint) -> None:
        """Perhaps while the old deployment starts a driver once more, with the old id."""
        operator = self.operator
        operator.trace.count("transactional id changed")
        self._id_count += 1
        if operator.faults.random() < STARTED_BY_THE_OLD:
            self.old_deployment = (newest, operator.sinks)
        name = f"{operator.name}-id-{self._id_count}"
        operator.options = replace(operator.options, transactional_id=name)

    def change_topic(self, newest: Checkpoint) -> None:
        """To the other one, once the record says which one it was."""
        operator = self.operator
        if newest.is_begun:
            operator.trace.count("topic changed")
            topics = {operator.source.output_topic, operator.second_topic}
            topics -= {str(operator.options.topic)}
            operator.options = replace(operator.options, topic=topics.pop())

    def _move(self, newest: Checkpoint) -> None:
        """To another place; one that was copied not, as nobody could see what the original is."""
        operator = self.operator
        if newest.is_begun and not operator.was_copied:
            operator.trace.count("checkpoint moved")
            operator.end_zombies(newest)
            self._move_count += 1
            moved = newest.moved_to(f"{operator.name}-moved-{self._move_count}")
            operator.checkpoints[-1] = moved
