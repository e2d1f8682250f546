"""What the conformance tests share: one JVM for Kafka's own tools and client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.availability import available
from support.java_tools import JavaHost, JavaProcess, java_command


@pytest.fixture(scope="session")
def java_host(tmp_path_factory) -> Iterator[JavaHost]:
    """One JVM for the session; `java` hands it out where Kafka's jars can be had."""
    with JavaHost(tmp_path_factory.mktemp("java")) as host:
        yield host


@pytest.fixture
def java(java_host) -> JavaHost:
    """Runs the main methods of Kafka's tools. The test is not run where they cannot be had."""
    available(java_command)
    return java_host


@pytest.fixture
def java_process(java, tmp_path: Path) -> Iterator[Callable[..., JavaProcess]]:
    """Starts main methods in JVMs of their own, which do not outlive the test."""
    started: list[JavaProcess] = []

    def start(main_class: str, *arguments: object) -> JavaProcess:
        folder = tmp_path / f"java-{len(started)}"
        started.append(JavaProcess(folder, main_class, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.kill()
