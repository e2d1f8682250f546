"""Note that a query writes next to the offsets of its consumer group.

Kafka stores a text of the committer with each committed offset (`metadata`). The committer writes
one `GroupNote` for each source of a batch, with the offset of the source's first partition. The
note names the query and batch that committed the group's offsets last, and the source that read the
rows. The source reads the note when a run begins (`source.plan_batch`), and the committer reads it
to name the query that moved its group (`commit.refusals`). A tool that resets offsets writes no
note.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from txnlog_kafka.operations.offsets import CommittedOffset

NOTE_VERSION = 1


class GroupNote(NamedTuple):
    """Note about one source of one committed batch.

    `positions` is the `positions_digest` of the offsets of this source after the batch. `source_id`
    is the id of the source (`SourceNote`) if the rows of the batch will not be needed again, else
    "".
    """

    query_id: str
    batch_id: int
    positions: str
    source_id: str = ""


def format_note(note: GroupNote) -> str:
    """Return the text for a committed offset, some 120 characters; `note_of` parses it."""
    value = {
        "v": NOTE_VERSION,
        "q": note.query_id,
        "b": note.batch_id,
        "p": note.positions,
        "s": note.source_id,
    }
    return json.dumps(value, separators=(",", ":"))


def note_of(metadata: str) -> GroupNote | None:
    """Return the note in a committed offset's text, None if another program wrote the text."""
    try:
        value = json.loads(metadata)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("v") != NOTE_VERSION:
        return None
    query_id, batch_id = value.get("q"), value.get("b")
    positions, source_id = value.get("p"), value.get("s")
    texts = (query_id, positions, source_id)
    if not isinstance(batch_id, int) or not all(isinstance(each, str) for each in texts):
        return None
    return GroupNote(str(query_id), batch_id, str(positions), str(source_id))


def notes_of(committed: Iterable[CommittedOffset]) -> list[GroupNote]:
    """Return the notes in a group's committed offsets."""
    found = (note_of(each.metadata) for each in committed)
    return [note for note in found if note is not None]
