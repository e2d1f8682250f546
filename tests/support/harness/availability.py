"""Skip a test with one line if an outside program or file cannot be had; fail it in CI."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.brokers.apache_kafka import jars
from support.harness.maven import Unavailable

T = TypeVar("T")


def check_available(name: str) -> None:
    """Skip the test in one line where Apache Kafka cannot be had; in CI that is a failure."""
    if name == "apache_kafka":
        available(jars)


def available(fetch: Callable[[], T]) -> T:
    """Return the result of `fetch`; if it raises Unavailable, skip the test, or fail it in CI."""
    try:
        return fetch()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))


@contextlib.contextmanager
def started_when_asked(
    kinds: Mapping[str, Callable[..., Any]], folder_of: Callable[[str], Path], **options: Any
) -> Iterator[Callable[[str], Any]]:
    """`broker_of(name)` is the one broker of a kind, which starts when it is first asked for."""
    with contextlib.ExitStack() as stack:
        running: dict[str, Any] = {}

        def broker_of(name: str) -> Any:
            check_available(name)
            if name not in running:
                running[name] = stack.enter_context(kinds[name](folder_of(name), **options))
            return running[name]

        yield broker_of
