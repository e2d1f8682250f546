"""Rows by partition, in stable order, so that order within a key survives the split."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


def scatter_rows(
    partitions: npt.NDArray[np.int32],
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each partition that occurs, ascending, with its rows' indices in their order."""
    if not len(partitions):
        return
    order = np.argsort(partitions, kind="stable")
    ordered = partitions[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, cuts):
        yield int(partitions[rows[0]]), rows
