"""Our definitions of messages equal the definitions of the published kafka-clients."""

from __future__ import annotations

import pytest
from support.kafka.kafka_definitions import FOLDER, all_derived


@pytest.mark.kafka
def test_the_definitions_are_those_of_kafka_clients() -> None:
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert there == all_derived(), "python -m support.kafka.kafka_definitions writes them again"
