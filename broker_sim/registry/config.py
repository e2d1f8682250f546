"""The configuration of the registry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """The limits; the defaults of sessions are ZooKeeper's with a tickTime of 2000."""

    session_timeout_min_ms: int = 4_000
    session_timeout_max_ms: int = 40_000
    journal_bytes_max: int = 4 * 1024 * 1024
    """A snapshot replaces the journal when it is longer than this, and than the last snapshot."""
