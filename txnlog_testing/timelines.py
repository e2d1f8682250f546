"""Timelines of the transactions in a broker's files, as the command `timeline` draws them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker_sim.cli.timeline import picture_of
from broker_sim.cli.timeline_cluster import Leaders
from broker_sim.cli.timeline_logs import TransactionHistory, find_stories, find_written
from broker_sim.cli.timeline_svg import draw

PICTURES_MAX = 4


def draw_all(
    data_dir: Path, is_wanted: Callable[[TransactionHistory], bool] = lambda _: True
) -> list[str]:
    """Return the last transactions that are wanted as SVG, the oldest first, at most PICTURES_MAX.

    Raises OSError if the files cannot be read.
    """
    found = [
        (history.records[-1].metadata.last_update_ms, number, history)
        for histories in find_stories(data_dir).values()
        for number, history in enumerate(histories)
        if history.partitions and is_wanted(history)
    ]
    found.sort(key=lambda each: each[:2])
    pictures = []
    for _, number, history in found[-PICTURES_MAX:]:
        leaders = Leaders(history.records[0].folder.parent.parent)
        picture = picture_of(history, find_written(history, data_dir), leaders, number)
        pictures.append(draw(picture))
    return pictures
