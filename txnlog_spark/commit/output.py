"""Identity of the output that a commit belongs to, in one value.

The progress has the target in clear text, and the rest as a digest. The table "Which output" in
docs/internals/commit-protocol.md says what follows if the recorded and the present value differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace

from txnlog_spark.errors import CheckpointCopied

_DIGEST_HEX = 16
_COPY_HEX = 8
NAME_BYTES_MAX = 249
"""Limit for ids and groups, in bytes: Kafka has it for topics only; it keeps log lines short."""
_MARK = "~"
_PROGRESS = ".progress."
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_QUERY_ID = re.compile(_UUID)
_OTHERS_PROGRESS = re.compile(rf"\.progress\.(?:{_UUID}|write-[0-9a-f]{{32}})(?:\.|\Z)")
_OF_BATCH_WRITES = ("app-", "write-")


@dataclass(frozen=True, slots=True)
class Output:
    """Target of a commit, and the query or application that writes to it.

    `checkpoint` is the checkpoint's normalised path, "" for a batch write. `copy` is "" for the
    checkpoint that Spark made, else a digest of the path where its copy was first used. `target` is
    the option topic, "" if each row names its topic.
    """

    query_id: str
    checkpoint: str = ""
    copy: str = ""
    sink_name: str = ""
    transactional_id: str = ""
    target: str = ""
    cluster_id: str = ""

    @property
    def digest(self) -> str:
        """Digest, in 16 characters, of all fields but the target."""
        value = asdict(self)
        del value["target"]
        return digest_of(json.dumps(value, sort_keys=True))[:_DIGEST_HEX]


def digest_of(text: str) -> str:
    """Return the text's SHA-256 as 64 hexadecimal digits; a name takes as many as it needs."""
    return hashlib.sha256(text.encode()).hexdigest()


def moved_or_copied(
    output: Output, before: Output, *, original_is_there: bool, is_same_group: bool
) -> Output:
    """Return `output` with its `copy`, by the output recorded `before`. Raises CheckpointCopied."""
    if output.checkpoint == before.checkpoint:
        return replace(output, copy=before.copy)
    same_id = output.transactional_id == before.transactional_id
    where = (
        f"the checkpoint of query {output.query_id} is at {output.checkpoint}, but was last used "
        f"at {before.checkpoint}"
    )
    if original_is_there and not same_id and not is_same_group:
        return replace(output, copy=digest_of(output.checkpoint)[:_COPY_HEX])
    if original_is_there:
        shared = f"transactional id {output.transactional_id!r}" if same_id else "kafka.group.id"
        raise CheckpointCopied(
            f"{where}, which is still there, and both have the same {shared}. "
            "Nothing was written, and no driver was fenced. If you copied the checkpoint, give the "
            "copy its own kafka.group.id (and its own kafka.transactional.id, if that is set or "
            "there is no group) and its own topic: it then continues with its own progress. If "
            f"you moved it, remove {before.checkpoint}"
        )
    if same_id and output.target == before.target:
        return replace(output, copy=before.copy)
    changed = "topic" if same_id else "transactional id"
    was = before.target if same_id else before.transactional_id
    now = output.target if same_id else output.transactional_id
    raise CheckpointCopied(
        f"{where}, which cannot be found, and its {changed} was {was!r} and is "
        f"{now!r}: it was moved or copied. Nothing was written, and no driver was fenced. If you "
        f"moved it, start it once with {changed} {was!r}; you may change the {changed} after the "
        f"next batch. If you copied it, delete {output.checkpoint}/txnlog and give the copy its "
        "own kafka.group.id (and its own kafka.transactional.id, if that is set or there is no "
        "group) and its own topic: it then continues as a query of its own, and writes its next "
        "batch whatever the original has written"
    )


# ------------------------------------------------------------------ names, each of one owner only
#
# No separator separates two parts for certain ("Names" in docs/internals/commit-protocol.md).


def query_transactional_id(
    option: str | None, group_id: str | None, query_id: str, sink_name: str
) -> str:
    """Name the transactional id of a query's sink: by option, else by group, else by query id.

    The option is used unchanged if the sink has no name.
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
    """Return the name as version 0.1.0 made it."""
    made = option or f"txnlog-{group_id or query_id}"
    return f"{made}-{sink_name}" if sink_name else made


def _is_of_another_kind(group_id: str) -> bool:
    """True if the group's readable transactional id could also be made from other parts."""
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
    """Return the name as version 0.1.0 made it."""
    return f"{app_id}{_PROGRESS}{target}"


def _marked(readable: str, *parts: str) -> str:
    """Return the readable name, shortened if it is too long, with a digest of its parts."""
    behind = _MARK + digest_of(json.dumps(parts))[:_DIGEST_HEX]
    kept = readable.encode()[: NAME_BYTES_MAX - len(behind)]
    return kept.decode(errors="ignore") + behind
