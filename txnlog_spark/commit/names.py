"""Transactional ids and progress groups that are made from other names, each from one only.

Kafka allows every character in a group id, and so do we in a txnAppId: no separator separates two
parts for certain. A name is the readable one if only these parts make it up, else the readable one
with `~` and a digest of the parts behind it. The readable names are

    query                 txnlog-GROUP, txnlog-QUERY       GROUP.progress.QUERY[.SINK]
    batch write           txnlog-write-RANDOM              GROUP.progress.write-RANDOM
    its txnAppId          txnlog-app-APP.TARGET            APP.progress.TARGET

QUERY and RANDOM are UUIDs, SINK has no dot, no readable name has a `~`. Version 0.1.0 had the
readable names alone: a query keeps the id that its checkpoint has recorded, a txnAppId the progress
group that has its progress.
"""

from __future__ import annotations

import json
import re

from txnlog_spark.commit.output import digest_of

NAME_BYTES_MAX = 249
"""Kafka's limit on topic names; Kafka has none for these. It keeps log lines short."""
_MARK = "~"
_DIGEST_HEX = 16
_PROGRESS = ".progress."
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_QUERY_ID = re.compile(_UUID)
_OTHERS_PROGRESS = re.compile(rf"\.progress\.(?:{_UUID}|write-[0-9a-f]{{32}})(?:\.|\Z)")
_OF_BATCH_WRITES = ("app-", "write-")


def query_transactional_id(
    option: str | None, group_id: str | None, query_id: str, sink_name: str
) -> str:
    """Name the transactional id of a query's sink: the option, else by its group, else by its id.

    The option is taken as it is, for a sink without a name.
    """
    readable = readable_transactional_id(option, group_id, query_id, sink_name)
    if option:
        kind, owner, is_unique = "option", option, True
    elif group_id:
        kind, owner, is_unique = "group", group_id, not _is_of_another_kind(group_id)
    else:
        kind, owner, is_unique = "query", query_id, True
    if is_unique and not sink_name:
        return readable
    return _marked(readable, kind, owner, sink_name)


def readable_transactional_id(
    option: str | None, group_id: str | None, query_id: str, sink_name: str
) -> str:
    """Name it as version 0.1.0 did."""
    made = option or f"txnlog-{group_id or query_id}"
    return f"{made}-{sink_name}" if sink_name else made


def _is_of_another_kind(group_id: str) -> bool:
    """True if the group's readable transactional id can be that of other parts."""
    is_query_id = _QUERY_ID.fullmatch(group_id) is not None
    return _MARK in group_id or is_query_id or group_id.startswith(_OF_BATCH_WRITES)


def app_transactional_id(app_id: str, target: str) -> str:
    """Name the transactional id of a txnAppId's writes to a target."""
    readable = f"txnlog-app-{app_id}.{target}"
    if "." in app_id or _MARK in readable:
        return _marked(readable, "app", app_id, target)
    return readable


def app_progress_group(app_id: str, target: str) -> str:
    """Name the group that holds the progress of a txnAppId's writes to a target."""
    readable = readable_app_progress_group(app_id, target)
    parts = tuple(readable.partition(_PROGRESS)[::2])
    is_unique = parts == (app_id, target) and _OTHERS_PROGRESS.search(readable) is None
    if is_unique and _MARK not in readable:
        return readable
    return _marked(readable, "app", app_id, target)


def readable_app_progress_group(app_id: str, target: str) -> str:
    """Name it as version 0.1.0 did."""
    return f"{app_id}{_PROGRESS}{target}"


def _marked(readable: str, *parts: str) -> str:
    """The readable name, cut where it is too long, and a digest of its parts."""
    behind = _MARK + digest_of(json.dumps(parts))[:_DIGEST_HEX]
    kept = readable.encode()[: NAME_BYTES_MAX - len(behind)]
    return kept.decode(errors="ignore") + behind
