"""Which output a commit belongs to: the one value that says who is who.

"This batch is committed, skip it" may only be believed of the very output that the batch is for.
The value is recorded in the checkpoint with each batch that is begun, and is in the progress that
the batch's transaction commits: the target in clear, all else as a digest. What it is when the two
differ is the table of "Which output" in docs/internals/commit-protocol.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from txnlog_spark.errors import CheckpointCopied

_DIGEST_HEX = 16
_COPY_HEX = 8


@dataclass(frozen=True, slots=True)
class Output:
    """What a commit writes to, and on whose behalf.

    `checkpoint` is where it lies, normalised, "" for a batch write; `copy` is "" for the checkpoint
    that Spark made, else a digest of where its copy was first used. `target` is the option topic,
    "" where each row names its topic.
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
        """Names all of it but the target in 16 characters."""
        value = asdict(self)
        del value["target"]
        return digest_of(json.dumps(value, sort_keys=True))[:_DIGEST_HEX]


def digest_of(text: str) -> str:
    """64 hexadecimal digits, of which a name takes as many as it needs."""
    return hashlib.sha256(text.encode()).hexdigest()


def moved_or_copied(
    output: Output, before: Output, *, original_is_there: bool, is_same_group: bool
) -> Output:
    """`output` as what it is by the table above, with the `copy` that it belongs to.

    `before` is what the checkpoint recorded last. Raises CheckpointCopied.
    """
    if output.checkpoint == before.checkpoint:
        return replace(output, copy=before.copy)
    same_id = output.transactional_id == before.transactional_id
    if original_is_there and not same_id and not is_same_group:
        return replace(output, copy=digest_of(output.checkpoint)[:_COPY_HEX])
    if original_is_there:
        shared = f"transactional id {output.transactional_id!r}" if same_id else "kafka.group.id"
        raise CheckpointCopied(
            f"{_where(output, before)}, which is still there, and both have the same {shared}. "
            "Nothing was written, and nobody was fenced. If it is a copy, give it a "
            "kafka.group.id of its own (and a kafka.transactional.id, if that is set or there is "
            "no group) and a topic of its own: it then goes on with progress of its own. If it "
            f"was moved, remove {before.checkpoint}"
        )
    if same_id and output.target == before.target:
        return replace(output, copy=before.copy)
    changed = "topic" if same_id else "transactional id"
    was = before.target if same_id else before.transactional_id
    now = output.target if same_id else output.transactional_id
    raise CheckpointCopied(
        f"{_where(output, before)}, which cannot be found, and its {changed} was {was!r} and is "
        f"{now!r}: it may have been moved, or be a copy. Nothing was written, and nobody was "
        f"fenced. If it was moved, start it once with the {changed} of before; it may be changed "
        f"after the next batch. If it is a copy, delete {output.checkpoint}/txnlog and give it a "
        "kafka.group.id of its own (and a kafka.transactional.id, if that is set): it then goes on "
        "as a query of its own, whose next batch is written whatever the original has written"
    )


def _where(output: Output, before: Output) -> str:
    return (
        f"the checkpoint of query {output.query_id} is at {output.checkpoint}, and was last used "
        f"at {before.checkpoint}"
    )
