"""Requests by hand as messages, of any API, for a broker of the core as well as on a socket."""

from __future__ import annotations

from typing import Any

from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey


def request(api_key: ApiKey, /, **fields: Any) -> Any:
    """A request message without a version. Structs in it may be dicts of their fields."""
    return made_of(KNOWN_APIS[api_key].request, fields)


def made_of(made: Any, fields: dict[str, Any]) -> Any:
    """A message or struct of this class. Structs in it may be dicts of their fields."""
    kinds = {each.name: each.kind for each in made.STRUCT.fields if each.struct is not None}
    for name in kinds.keys() & fields.keys():
        below, value = getattr(made, kinds[name]), fields[name]
        if isinstance(value, dict):
            fields[name] = made_of(below, value)
        elif value is not None:
            fields[name] = [made_of(below, v) if isinstance(v, dict) else v for v in value]
    return made(**fields)


def find_coordinator(key_type: int, *keys: str) -> Any:
    return request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[*keys])


def produce_request(
    batches: dict[tuple[str, int], bytes | None],
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int = 1000,
) -> Any:
    topics = [
        {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        for (topic, partition), records in batches.items()
    ]
    return request(
        ApiKey.PRODUCE, acks=acks, timeout_ms=timeout_ms, transactional_id=transactional_id,
        topic_data=topics,
    )  # fmt: skip


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    max_bytes: int = 1 << 20,
    committed: bool = False,
    leader_epoch: int = -1,
    **fields: Any,
) -> Any:
    """A Fetch request for one partition."""
    place = {
        "partition": partition, "current_leader_epoch": leader_epoch, "fetch_offset": offset,
        "partition_max_bytes": max_bytes,
    }  # fmt: skip
    return request(
        ApiKey.FETCH,
        **{"session_epoch": -1} | fields,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        topics=[{"topic": topic, "partitions": [place]}],
    )
