"""ListOffsets by hand: the special timestamps, and from which version on each may be asked for."""

from __future__ import annotations

import pytest
from support.clients.librdkafka import create_topic, produce_values
from support.raw.raw_admin import list_offset
from support.raw.routed import leader

from txnlog_kafka.wire.error_codes import error_name

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(
    -1, -7, -1
)
KNOWN_FROM = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


@pytest.fixture
def topic(bootstrap, unique):
    """Return a topic with three records, the second of which has the latest timestamp."""
    name = create_topic(bootstrap, unique("listed"))
    produce_values(bootstrap, name, ["a", "b", "c"], partition=0)
    return name


@pytest.mark.no_kill("asks the leader of the moment once")
def test_where_there_are_no_tiers_the_offsets_of_tiers_are_unknown(broker, topic):
    with leader(broker, topic) as connection:
        found = {}
        for timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            entry = list_offset(connection, topic, 0, timestamp=timestamp, version=11)
            known = entry.leader_epoch >= 0
            found[timestamp] = error_name(entry.error_code), entry.offset, entry.timestamp, known
    unknown = "NONE", -1, -1, False
    assert found == {
        LATEST: ("NONE", 3, -1, True),
        EARLIEST: ("NONE", 0, -1, True),
        EARLIEST_LOCAL: ("NONE", 0, -1, True),
        LATEST_TIERED: unknown,
        EARLIEST_PENDING_UPLOAD: unknown,
    }


@pytest.mark.no_kill("asks the leader of the moment once")
def test_a_special_timestamp_is_not_known_before_its_version(broker, topic):
    def ask(timestamp: int, version: int) -> str:
        entry = list_offset(connection, topic, 0, timestamp=timestamp, version=version)
        return error_name(entry.error_code)

    with leader(broker, topic) as connection:
        found = {at: (ask(at, since - 1), ask(at, since)) for at, since in KNOWN_FROM.items()}
        assert ask(-7, 11) == "UNSUPPORTED_VERSION"
    assert found == dict.fromkeys(KNOWN_FROM, ("UNSUPPORTED_VERSION", "NONE"))
