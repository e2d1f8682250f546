"""The transactional ids that a query has had, one file each in the checkpoint, under `txnlog/ids/`.

InitProducerId fences the drivers that hold the same transactional id. After the option or the group
was changed a driver with the id of before may live, or be started once more, or two drivers with
two new ids at once. So a driver

    1. records its id (`record_id`), once in a run,
    2. initialises it, for each batch,
    3. lists all ids of the query and fences the others (`other_ids`), for each batch,

in this order, before it judges what is committed. Of two drivers the one that initialised its own
id later listed after that; the other had recorded its id before it initialised it, so the later
one finds it, and fences what the other initialised. At most one of the two goes on. (Both may be
fenced; Spark stops both queries, and whoever is started again goes on.)

A record is never replaced by other content and never removed: a driver that wrote it may be paused
anywhere after it. An id costs one InitProducerId in each batch of a query that has changed it. A
copy of the checkpoint has a folder of its own, and so fences nobody of the original's.
"""

from __future__ import annotations

import hashlib
import json

from txnlog_spark.commit.files import json_of, list_folder, read_text, unreadable, write_file
from txnlog_spark.commit.plan import Committer
from txnlog_spark.protocol.effects import Operation

IDS_VERSION = 1


def ids_folder(who: Committer) -> str:
    """Where the ids of this query, or of this copy of it, are recorded."""
    copy = who.output.copy
    return f"{who.folder}/ids-{copy}" if copy else f"{who.folder}/ids"


def record_path(who: Committer, transactional_id: str) -> str:
    """Where an id is recorded: ids may have any length and characters, names of files not."""
    digest = hashlib.sha256(transactional_id.encode()).hexdigest()[:32]
    return f"{ids_folder(who)}/{digest}.json"


def record_id(who: Committer) -> Operation[None]:
    """Record the committer's id, durably. Raises ProgressError."""
    value = {"version": IDS_VERSION, "transactional_id": who.transactional_id}
    data = json.dumps(value, indent=1).encode()
    yield from write_file(record_path(who, who.transactional_id), data, durable=True)


def other_ids(who: Committer) -> Operation[list[str]]:
    """All recorded ids but the committer's, in the order of their files. Raises ProgressError."""
    folder, own = ids_folder(who), record_path(who, who.transactional_id)
    names = []
    for file_name in (yield from list_folder(folder)):
        path = f"{folder}/{file_name}"
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
