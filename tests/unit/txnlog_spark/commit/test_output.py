"""Output of a commit: the same query, a moved checkpoint or a copy, decided by every field."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from txnlog_spark.commit import output
from txnlog_spark.commit.output import Output
from txnlog_spark.errors import CheckpointCopied

BEFORE = Output("q", "/cp", "", "", "tid", "out", "c")


def moved_or_copied(
    found: Output, before: Output, *, original_is_there: bool, is_same_group: bool = False
) -> Output:
    return output.moved_or_copied(
        found, before, original_is_there=original_is_there, is_same_group=is_same_group
    )


def at(checkpoint: str, **changes: str) -> Output:
    return replace(BEFORE, checkpoint=checkpoint, **changes)


@pytest.mark.parametrize("name", [field.name for field in fields(Output)])
def test_the_digest_changes_with_each_field_but_the_target(name: str) -> None:
    is_equal = replace(BEFORE, **{name: "another"}).digest == BEFORE.digest
    assert is_equal == (name == "target")


def test_the_digest_tells_where_one_field_ends() -> None:
    assert Output("ab", "c").digest != Output("a", "bc").digest


OTHER_ID, OTHER_TOPIC = {"transactional_id": "new"}, {"target": "topic"}
CHANGES = [{}, OTHER_ID, OTHER_TOPIC, OTHER_ID | OTHER_TOPIC]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("copy", ["", "c0ffee"])
@pytest.mark.parametrize("is_there", [True, False])
def test_at_the_same_place_it_is_the_same_query_whatever_else_has_changed(
    changes: dict[str, str], copy: str, is_there: bool
) -> None:
    before = replace(BEFORE, copy=copy)
    found = moved_or_copied(at("/cp", **changes), before, original_is_there=is_there)
    assert found == at("/cp", copy=copy, **changes)


@pytest.mark.parametrize("changes", [OTHER_ID, OTHER_ID | OTHER_TOPIC])
def test_beside_its_original_it_is_a_copy_when_it_has_an_id_of_its_own(
    changes: dict[str, str],
) -> None:
    found = moved_or_copied(at("/copy", **changes), BEFORE, original_is_there=True)
    assert found.copy not in ("", BEFORE.copy)
    assert replace(found, copy="") == at("/copy", **changes)
    again = moved_or_copied(at("/copy", **changes), found, original_is_there=True)
    assert again == found
    second = moved_or_copied(at("/copy-2", **changes), BEFORE, original_is_there=True)
    assert second.copy != found.copy
    of_copy = moved_or_copied(
        at("/copy-2", transactional_id="newer"), found, original_is_there=True
    )
    assert of_copy.copy not in ("", found.copy)


def test_a_copy_that_would_move_the_group_of_its_original_is_refused() -> None:
    with pytest.raises(CheckpointCopied, match=r"the same kafka\.group\.id\. Nothing was written"):
        moved_or_copied(at("/copy", **OTHER_ID), BEFORE, original_is_there=True, is_same_group=True)


@pytest.mark.parametrize("copy", ["", "c0ffee"])
def test_with_all_else_the_same_and_its_original_gone_it_was_moved(copy: str) -> None:
    before = replace(BEFORE, copy=copy)
    found = moved_or_copied(at("/new"), before, original_is_there=False)
    assert found == at("/new", copy=copy)


@pytest.mark.parametrize(
    ("is_there", "changes", "named"),
    [
        (True, {}, ["still there", "'tid'", "its own kafka.group.id", "remove /cp"]),
        (True, OTHER_TOPIC, ["still there", "'tid'", "remove /cp"]),
        (False, OTHER_TOPIC, ["its topic was 'out' and is 'topic'", "delete /new/txnlog"]),
        (False, OTHER_ID, ["its transactional id was 'tid' and is 'new'", "delete /new/txnlog"]),
        (False, OTHER_ID | OTHER_TOPIC, ["its transactional id was 'tid' and is 'new'"]),
    ],
)
def test_what_cannot_be_told_is_refused_and_named(
    is_there: bool, changes: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(CheckpointCopied, match="is at /new, but was last used at /cp") as caught:
        moved_or_copied(at("/new", **changes), BEFORE, original_is_there=is_there)
    for words in [*named, "query q", "Nothing was written"]:
        assert words in str(caught.value)


def test_each_advice_of_a_refusal_leads_to_a_row_of_the_table_that_goes_on() -> None:
    """The test carries out the advice of each refusal, and the next start is accepted."""
    # Still there, same id. A copy: an id of its own.
    assert moved_or_copied(at("/new", **OTHER_ID), BEFORE, original_is_there=True).copy
    # Still there, same id. Moved: remove the original.
    assert moved_or_copied(at("/new"), BEFORE, original_is_there=False) == at("/new")
    # Gone, something changed. Moved: once as it was before; changed after the next batch.
    moved = moved_or_copied(at("/new"), BEFORE, original_is_there=False)
    changed = at("/new", **OTHER_ID, **OTHER_TOPIC)
    assert moved_or_copied(changed, moved, original_is_there=False) == changed
