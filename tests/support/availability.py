"""Whether what comes from outside can be had here: one line where not, and a failure in CI."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from support.apache_kafka import Unavailable, jars

T = TypeVar("T")


def check_available(name: str) -> None:
    """Skip the test in one line where Apache Kafka cannot be had; in CI that is a failure."""
    if name == "apache_kafka":
        available(jars)


def available(fetch: Callable[[], T]) -> T:
    """What `fetch` gives; when it raises Unavailable the test is not run, in CI it fails."""
    try:
        return fetch()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))
