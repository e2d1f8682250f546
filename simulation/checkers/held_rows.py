"""Exactly-once of a stateful query, by conservation: no plan of a batch is needed to check it.

A row of the input is in the committed output once, or it waits in the state that the query's last
batch has left: never both, as it would come again, and never neither. That holds whatever batches
the rows came in, as long as the query goes on with its checkpoint.

A query that was refused and went on with a new checkpoint, from the group's committed offsets, has
lost the state, and nothing else: a row before those offsets may be missing only if it waited in the
state that the last committed batch of an abandoned checkpoint had left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from simulation.hosts.checkpoint import STATE, Checkpoint
from simulation.hosts.deployment import Deployment
from simulation.hosts.spark_tasks import Row
from simulation.hosts.stateful import held_in
from simulation.violation import DUPLICATE, GARBAGE_READ, LOST_WRITE, violated

SHOWN_MAX = 10
Groups = Mapping[str, Mapping[tuple[str, int], int]]
"""The committed offsets of each group."""


def check_held(deployment: Deployment, seen: Collection[Row], groups: Groups) -> None:
    """Each row of the input is in `seen`, the output, or waits in the state (35)."""
    finished = deployment.finished
    if finished is None:
        violated(46, "the query did not finish")
    ends = {place.partition: end for place, end in deployment.source.ends.items()}
    if foreign := sorted(row for row in seen if not 0 <= row[1] < ends.get(row[0], 0)):
        violated(35, "rows are in the output that are not in the input", GARBAGE_READ,
                 foreign=foreign[:SHOWN_MAX])  # fmt: skip
    waiting = {*held_in(finished.recalled(STATE, _progress(deployment, finished, groups)) or "[]")}
    if twice := sorted(waiting & {*seen}):
        violated(35, "rows are in the output and will be once more", DUPLICATE,
                 rows=twice[:SHOWN_MAX], count=len(twice))  # fmt: skip
    abandoned: set[Row] = set()
    for checkpoint in deployment.checkpoints:
        if checkpoint is not finished:
            abandoned |= _held(checkpoint, _progress(deployment, checkpoint, groups))
    starts = finished.starts()
    excused = {row for row in abandoned if row[1] < starts.get(row[0], 0)}
    wanted = {(p, n) for p, end in ends.items() for n in range(end)}
    if missing := sorted(wanted - {*seen} - waiting - excused):
        violated(35, "rows are neither in the output nor in the state", LOST_WRITE,
                 missing=missing[:SHOWN_MAX], missing_count=len(missing))  # fmt: skip


def _progress(deployment: Deployment, checkpoint: Checkpoint, groups: Groups) -> int:
    """Return the version of the state that the last committed batch has left."""
    group_id = deployment.progress_group_at(checkpoint, deployment.sinks[-1])
    return max(groups[group_id].values(), default=0)


def _held(checkpoint: Checkpoint, version: int) -> set[Row]:
    """Return all rows that ever waited in this version of the state, also where it is gone."""
    written = checkpoint.written.get(f"{STATE}/{version}", [])
    return {row for data in written for row in held_in(data.decode())}
