"""Waits until a broker's coordinators answer, so that no test meets their first seconds by chance.

Apache Kafka makes its two internal topics at the first request that needs them, and loads each of
their partitions in the background, after every start: COORDINATOR_LOAD_IN_PROGRESS meanwhile, to
clients that try again as well as to requests that are sent once.
"""

from __future__ import annotations

from support.raw.raw import Connection
from support.raw.requests import find_coordinator, request

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

GROUP, TRANSACTION = 0, 1
LOADED = {"NONE", "TRANSACTIONAL_ID_NOT_FOUND"}


def coordinators_ready(port: int, *, group_partitions: int, transaction_partitions: int) -> bool:
    """True if every partition of both internal topics exists, is led and is loaded."""
    groups = one_key_a_partition(group_partitions)
    ids = one_key_a_partition(transaction_partitions)
    with Connection(port) as connection:
        return (
            _found(connection, GROUP, groups)
            and _found(connection, TRANSACTION, ids)
            and _described(connection, groups, ids) <= LOADED
        )


def one_key_a_partition(count: int) -> list[str]:
    """Return unused keys, one for each of the `count` partitions of a coordinator."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        key = f"coordinators-ready-{number}"
        found.setdefault(_partition_for(key, count), key)
        number += 1
    return list(found.values())


def _partition_for(key: str, count: int) -> int:
    """Kafka's `Utils.abs(hashCode) % count` of an ASCII key; nothing of ours is asked here."""
    value = 0
    for character in key:
        value = 31 * value + ord(character) & 0xFFFFFFFF
    return (min(value, 2**32 - value) & 0x7FFFFFFF) % count


def _found(connection: Connection, key_type: int, keys: list[str]) -> bool:
    found = connection.ask(find_coordinator(key_type, *keys), 4).coordinators
    return all(each.error_code == 0 for each in found)


def _described(connection: Connection, groups: list[str], ids: list[str]) -> set[str]:
    answers = [*connection.ask(request(ApiKey.DESCRIBE_GROUPS, groups=groups), 5).groups]
    of_ids = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=ids)
    answers += connection.ask(of_ids, 0).transaction_states
    return {error_name(each.error_code) for each in answers}
