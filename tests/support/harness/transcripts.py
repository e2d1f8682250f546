"""Digests of what Apache Kafka was asked and answered, recorded once per version of it.

A sequence of requests that two brokers answered alike is one transcript, whoever is asked. So ours
alone is asked again, and has to give the recorded one. Where it does not, or nothing is recorded,
the answers or the requests are others than they were, and only Apache Kafka can tell who is right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.brokers.apache_kafka import VERSION

RECORDED = Path(__file__).parents[2] / "recorded"

Transcript = list[str]
"""Digests of the requests of a sequence; the last entry may say how the sequence ended."""


def digest(value: Any) -> str:
    """Return the digest of a value that consists of JSON's types, tuples and bytes."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_transcripts(name: str, version: str = VERSION) -> dict[int, Transcript]:
    """Return the transcripts by seed; empty if nothing is recorded by this name."""
    path = _path(name, version)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {int(seed): words for seed, *words in map(str.split, lines)}


def write_transcripts(
    name: str, transcripts: Mapping[int, Transcript], version: str = VERSION
) -> None:
    """Write one line for each seed."""
    path = _path(name, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (" ".join((str(seed), *words)) + "\n" for seed, words in transcripts.items())
    path.write_text("".join(lines), encoding="utf-8")


def _path(name: str, version: str) -> Path:
    return RECORDED / version / f"{name}.txt"
