"""The transactional ids that a query has had, one file each in the checkpoint, under `txnlog/ids/`.

InitProducerId fences the drivers that hold the same transactional id. After the option or the group
was changed a driver with the id of before may live, or be started once more, or two drivers with
two new ids at once. So a driver that takes a query over

    1. records its id (`record_ids`),
    2. initialises it,
    3. lists all ids of the query and fences the others (`other_ids`),

in this order, before it judges what is committed. Of two drivers the one that initialised its own
id later listed after that; the other had recorded its id before it initialised it, so the later
one finds it, and fences what the other initialised. At most one of the two goes on. (Both may be
fenced; Spark stops both queries, and whoever is started again goes on.)

A record is never replaced by other content and never removed: a driver that wrote it may be paused
anywhere after it. An id costs one InitProducerId in each later takeover.
"""

from __future__ import annotations

import hashlib
import json

from txnlog_spark.commit.files import json_of, list_folder, read_text, unreadable, write_file
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.protocol.effects import Operation

IDS_VERSION = 1


def record_path(folder: str, transactional_id: str) -> str:
    """Where an id is recorded: ids may have any length and characters, names of files not."""
    digest = hashlib.sha256(transactional_id.encode()).hexdigest()[:32]
    return f"{folder}/ids/{digest}.json"


def record_ids(folder: str, plan: CommitPlan) -> Operation[None]:
    """Record the plan's id, durably. Raises ProgressError.

    In a checkpoint of a version that recorded none, the last attempt's id is recorded before it:
    after a crash in between the folder is not empty, and must have that one.
    """
    names = [plan.transactional_id]
    previous = plan.previous_transactional_id
    if previous is not None and not (yield from list_folder(f"{folder}/ids")):
        names.insert(0, previous)
    for name in names:
        value = {"version": IDS_VERSION, "transactional_id": name}
        data = json.dumps(value, indent=1).encode()
        yield from write_file(record_path(folder, name), data, durable=True)


def other_ids(folder: str, transactional_id: str) -> Operation[list[str]]:
    """All recorded ids but this one, in the order of their files. Raises ProgressError."""
    own = record_path(folder, transactional_id)
    names = []
    for file_name in (yield from list_folder(f"{folder}/ids")):
        path = f"{folder}/ids/{file_name}"
        if path != own:
            names.append(_id_of(path, (yield from read_text(path))))
    return names


def _id_of(path: str, text: str) -> str:
    value = json_of(path, text)
    if not isinstance(value, dict) or value.get("version") != IDS_VERSION:
        raise unreadable(path, "it is not a transactional id as this version records it")
    name = value.get("transactional_id")
    if not isinstance(name, str) or not name:
        raise unreadable(path, "it has no transactional_id")
    return name
