"""Waits until a broker's coordinators answer, so that no test meets their first seconds by chance.

Apache Kafka makes its two internal topics at the first request that needs them, and loads each of
their partitions in the background, after every start: COORDINATOR_LOAD_IN_PROGRESS meanwhile, to
clients that try again as well as to requests that are sent once.
"""

from __future__ import annotations

from support.raw.raw import Connection, message_class

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

GROUP, TRANSACTION = 0, 1
LOADED = {"NONE", "TRANSACTIONAL_ID_NOT_FOUND"}


def coordinators_ready(port: int, *, group_partitions: int, transaction_partitions: int) -> bool:
    """Whether every partition of both internal topics is there, led and loaded."""
    groups = one_key_a_partition(group_partitions)
    ids = one_key_a_partition(transaction_partitions)
    with Connection(port) as connection:
        return (
            _found(connection, GROUP, groups)
            and _found(connection, TRANSACTION, ids)
            and _described(connection, groups, ids) <= LOADED
        )


def one_key_a_partition(count: int) -> list[str]:
    """Keys that nobody uses, one of them for each of the `count` partitions of a coordinator."""
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
    request = message_class(ApiKey.FIND_COORDINATOR)(key_type=key_type, coordinator_keys=keys)
    return all(each.error_code == 0 for each in connection.ask(request, 4).coordinators)


def _described(connection: Connection, groups: list[str], ids: list[str]) -> set[str]:
    of_groups = message_class(ApiKey.DESCRIBE_GROUPS)(groups=groups)
    of_ids = message_class(ApiKey.DESCRIBE_TRANSACTIONS)(transactional_ids=ids)
    answers = [*connection.ask(of_groups, 5).groups]
    answers += connection.ask(of_ids, 0).transaction_states
    return {error_name(each.error_code) for each in answers}
