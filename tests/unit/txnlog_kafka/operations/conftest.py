"""Fixture of the operations' tests."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker


@pytest.fixture
def cluster() -> CoreBroker:
    """Return a cluster of one broker, with transaction version 2."""
    return CoreBroker()
