"""Several brokers' data directories side by side: whose replica to read, and who led when.

A batch says by its leader epoch under whom it was appended. Which broker that was is in the
cluster's metadata: `metadata.jsonl`, one record a line, which the simulator's `--save-logs`
leaves beside the brokers' directories. Without it all is drawn as of one broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_sim.cli.timeline_svg import ON_BROKER

HISTORY_FILE = "metadata.jsonl"
NO_LEADER = -1


class Leaders:
    """The leader of each partition in each of its leader epochs."""

    def __init__(self, root: Path) -> None:
        """`root` holds brokers' directories, or is one of them: then nothing is known. Raises
        OSError."""
        self._brokers: dict[tuple[str, int], int] = {}
        self._topics: dict[str, str] = {}
        path = root / HISTORY_FILE
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._follow(json.loads(line))

    def lane(self, name: str, folder: str, leader_epoch: int) -> str:
        """What a lane is called of what the leader of a folder's partition did in that epoch."""
        broker = self._brokers.get((folder, leader_epoch))
        return name if broker is None else f"{name}{ON_BROKER}{broker}"

    def _follow(self, record: Mapping[str, Any]) -> None:
        if record["type"] == "topic":
            self._topics[record["topic_id"]] = record["name"]
            for number, registration in enumerate(record.get("registrations", ())):
                self._note(f"{record['name']}-{number}", registration)
        elif record["type"] == "partition-changed":
            topic = self._topics.get(record["topic_id"], "")
            self._note(f"{topic}-{record['partition']}", record["registration"])

    def _note(self, folder: str, registration: Mapping[str, Any]) -> None:
        if registration["leader"] != NO_LEADER:
            self._brokers[folder, registration["leader_epoch"]] = registration["leader"]


def replicas_of(root: Path, pattern: str) -> list[Path]:
    """Of each partition that the pattern names the folder that has most, in the order of names."""
    best: dict[str, tuple[int, Path]] = {}
    for folder in sorted(root.glob(pattern)):
        size_bytes = sum(path.stat().st_size for path in folder.glob("*.log"))
        if folder.name not in best or size_bytes > best[folder.name][0]:
            best[folder.name] = size_bytes, folder
    return [folder for _, (_, folder) in sorted(best.items())]
