"""Fixtures for tests of the stream reader."""

from __future__ import annotations

import pytest
from support.query.source_cluster import Cluster, stand_in


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that is a dictionary, for all readers."""
    return stand_in(monkeypatch)
