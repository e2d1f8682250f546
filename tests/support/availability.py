"""Whether a kind of broker can be had here: one line where not, and a failure in CI."""

from __future__ import annotations

import os

import pytest

from support.apache_kafka import Unavailable, jars


def check_available(name: str) -> None:
    """Skip the test in one line where Apache Kafka cannot be had; in CI that is a failure."""
    if name != "apache_kafka":
        return
    try:
        jars()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))
