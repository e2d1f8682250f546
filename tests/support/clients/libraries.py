"""The adapters by name."""

from __future__ import annotations

from pathlib import Path

from support.clients.adapter import Client
from support.clients.aiokafka_client import Aiokafka
from support.clients.java_client import Java
from support.clients.kafka_python import KafkaPython
from support.clients.librdkafka_client import Librdkafka
from support.kafka.java_tools import JavaHost

IN_PYTHON = {"aiokafka": Aiokafka, "kafka-python": KafkaPython, "librdkafka": Librdkafka}


def client_of(name: str, folder: Path) -> Client:
    """A client for a process of its own; Java's JVM ends with that."""
    return IN_PYTHON[name]() if name in IN_PYTHON else Java(JavaHost(folder))
