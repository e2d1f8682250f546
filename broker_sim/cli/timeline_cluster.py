"""Data directories of several brokers: the replica to read, and the leader of each epoch.

A batch shows by its leader epoch under which leader it was appended. The broker of that epoch is in
the cluster's metadata: `metadata.jsonl`, one record a line, which the simulator's `--save-logs`
writes beside the brokers' directories. Without that file the picture has a single broker.
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
    """Leader of each partition in each of its leader epochs."""

    def __init__(self, root: Path) -> None:
        """`root` holds brokers' directories, or is one of them: then no leader is known. Raises
        OSError."""
        self._brokers: dict[tuple[str, int], int] = {}
        self._topics: dict[str, str] = {}
        path = root / HISTORY_FILE
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._follow_record(json.loads(line))

    def lane(self, name: str, folder: str, leader_epoch: int) -> str:
        """Return the name of the lane for actions of the leader of a folder's partition in that
        epoch."""
        broker = self._brokers.get((folder, leader_epoch))
        return name if broker is None else f"{name}{ON_BROKER}{broker}"

    def _follow_record(self, record: Mapping[str, Any]) -> None:
        if record["type"] == "topic":
            self._topics[record["topic_id"]] = record["name"]
            for number, registration in enumerate(record.get("registrations", ())):
                self._note_registration(f"{record['name']}-{number}", registration)
        elif record["type"] == "partition-changed":
            topic = self._topics.get(record["topic_id"], "")
            self._note_registration(f"{topic}-{record['partition']}", record["registration"])

    def _note_registration(self, folder: str, registration: Mapping[str, Any]) -> None:
        if registration["leader"] != NO_LEADER:
            self._brokers[folder, registration["leader_epoch"]] = registration["leader"]


def replicas_of(root: Path, pattern: str) -> list[Path]:
    """Return, for each partition that the pattern matches, its largest folder, in the order of
    names."""
    best: dict[str, tuple[int, Path]] = {}
    for folder in sorted(root.glob(pattern)):
        size_bytes = sum(path.stat().st_size for path in folder.glob("*.log"))
        if folder.name not in best or size_bytes > best[folder.name][0]:
            best[folder.name] = size_bytes, folder
    return [folder for _, (_, folder) in sorted(best.items())]
