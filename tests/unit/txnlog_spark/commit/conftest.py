"""Fixtures of the commit's tests."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.query.query_job import QueryJob


@pytest.fixture
def job() -> QueryJob:
    """Return a job whose batches 0 and 1 of /cp are committed, with group g."""
    made = QueryJob()
    for number in (0, 1):
        made.commit("/cp", number, group_id="g")
    return made


@pytest.fixture
def cluster() -> CoreBroker:
    """Return a cluster of one broker, with transaction version 2."""
    return CoreBroker()
