"""The outputs that a query has had, one file each in the checkpoint, under `txnlog/outputs/`.

InitProducerId fences the drivers that hold the same transactional id. After the option or the group
was changed a driver with the id of before may live, or be started once more, or two drivers with
two new ids at once. So a driver

    1. records its output (`record_output`), with its id, once in a run,
    2. initialises the id, for each batch,
    3. lists all ids of the query and fences the others (`other_ids`), for each batch,

in this order, before it judges what is committed. Of two drivers the one that initialised its own
id later listed after that; the other had recorded its id before it initialised it, so the later
one finds it, and fences what the other initialised. At most one of the two goes on. (Both may be
fenced; Spark stops both queries, and the one that is started again goes on.)

The same files say which progress is the query's own: it was committed for one of these outputs.

A record is never replaced by other content and never removed: a driver that wrote it may be paused
anywhere after it. An id costs one InitProducerId in each batch of a query that has changed it. A
copy of the checkpoint has a folder of its own, and so fences nobody of the original's.
"""

from __future__ import annotations

import json
from collections import defaultdict

from txnlog_kafka.operations.effects import Operation
from txnlog_spark.commit.checkpoint_files import (
    json_of,
    list_folder,
    read_text,
    unreadable,
    write_file,
)
from txnlog_spark.commit.output import digest_of
from txnlog_spark.commit.plan import Committer

RECORD_VERSION = 1


def outputs_folder(committer: Committer) -> str:
    """Where the outputs of this query, or of this copy of it, are recorded."""
    copy = committer.output.copy
    return f"{committer.folder}/outputs-{copy}" if copy else f"{committer.folder}/outputs"


def record_path(committer: Committer) -> str:
    """Where the output is recorded: its name tells the own id's records without reading them."""
    return f"{outputs_folder(committer)}/{_id_digest(committer)}-{committer.output.digest}.json"


def _id_digest(committer: Committer) -> str:
    """Ids may have any length and characters, names of files not."""
    return digest_of(committer.transactional_id)[:32]


def record_output(committer: Committer) -> Operation[None]:
    """Record the committer's output, durably. Raises ProgressError."""
    value = {"version": RECORD_VERSION, "transactional_id": committer.transactional_id}
    data = json.dumps(value, indent=1).encode()
    yield from write_file(record_path(committer), data, durable=True)


def recorded_digests(committer: Committer) -> Operation[frozenset[str]]:
    """Those of all recorded outputs. Raises ProgressError."""
    names = yield from list_folder(outputs_folder(committer))
    return frozenset(name.removesuffix(".json").rpartition("-")[2] for name in names)


def other_ids(committer: Committer) -> Operation[dict[str, list[str]]]:
    """All recorded ids but the committer's, each with its files. Raises ProgressError."""
    folder, own = outputs_folder(committer), f"{_id_digest(committer)}-"
    found: dict[str, list[str]] = defaultdict(list)
    for name in (yield from list_folder(folder)):
        path = f"{folder}/{name}"
        if not name.startswith(own):
            found[_id_of(path, (yield from read_text(path)))].append(path)
    return found


def _id_of(path: str, text: str) -> str:
    value = json_of(path, text)
    if not isinstance(value, dict) or value.get("version") != RECORD_VERSION:
        raise unreadable(path, "it is not an output as this version records it")
    name = value.get("transactional_id")
    if not isinstance(name, str) or not name:
        raise unreadable(path, "it has no transactional_id")
    return name
