"""No two writes are given one transactional id, or one group for their progress."""

from __future__ import annotations

import uuid
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txnlog_spark.commit.output import (
    NAME_BYTES_MAX,
    app_progress_group,
    app_transactional_id,
    query_transactional_id,
)
from txnlog_spark.commit.plan import CommitOptions

QUERY_IDS = [str(uuid.UUID(int=n)) for n in (1, 2)]
RANDOM = uuid.UUID(int=1).hex
PIECES = ["a", "b", "-", ".", "_", "~", "app", "write", "progress", "*", RANDOM, *QUERY_IDS]
NAMES = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
SINKS = st.lists(st.sampled_from(["a", "b", "-", "_", QUERY_IDS[0]]), max_size=3).map("".join)
TARGETS = NAMES.filter(bool)

Write = tuple[str, ...]
"""A kind of write and its parts."""
QUERIES = st.tuples(
    st.just("query"), st.one_of(st.just(""), NAMES), st.sampled_from(QUERY_IDS), SINKS
)
APPS = st.tuples(st.just("app"), NAMES, TARGETS)
WRITES = st.tuples(st.just("write"), st.just(f"write-{RANDOM}"))


def transactional_id(write: Write) -> tuple[Write, str]:
    """The parts that the id is made of, and the id."""
    if write[0] == "app":
        return write, app_transactional_id(*write[1:])
    if write[0] == "write":
        return write, CommitOptions().transactional_id_of_write(write[1])
    _, group_id, query_id, sink = write
    owner = ("of a group", group_id) if group_id else ("of a query", query_id)
    return (*owner, sink), query_transactional_id(None, group_id, query_id, sink)


def progress_group(write: Write) -> tuple[Write, str]:
    """The parts that have progress of their own, and its group. Queries never share any, whatever
    their groups are."""
    if write[0] == "app":
        return write, app_progress_group(*write[1:])
    if write[0] == "write":
        return write, CommitOptions(group_id="a").progress_group_of(write[1])
    _, group_id, query_id, sink = write
    options = CommitOptions(group_id=group_id or None, sink_name=sink)
    return ("query", query_id, sink), options.progress_group_of(query_id)


@pytest.mark.parametrize("name_of", [transactional_id, progress_group])
@given(writes=st.lists(st.one_of(QUERIES, APPS, WRITES), min_size=2, max_size=8))
@example([("query", "a", QUERY_IDS[0], "b"), ("query", "a-b", QUERY_IDS[1], "")])
@example([("app", "a", "b.c"), ("app", "a.b", "c")])
@example([("app", "a", "b"), ("query", "app-a.b", QUERY_IDS[0], "")])
@example([("query", "", QUERY_IDS[0], ""), ("query", QUERY_IDS[0], QUERY_IDS[1], "")])
@example([("write", f"write-{RANDOM}"), ("query", f"write-{RANDOM}", QUERY_IDS[0], "")])
@example([("app", "a", QUERY_IDS[0]), ("query", "a", QUERY_IDS[0], "")])
@example([("app", "a", f"write-{RANDOM}"), ("write", f"write-{RANDOM}")])
@example([("app", "a", "progress.b"), ("app", "a.progress", "b")])
@example([("app", "a", "b.progress.c"), ("app", "a.progress.b", "c")])
def test_distinct_parts_give_distinct_names(name_of, writes: list[Write]) -> None:
    named = [name_of(write) for write in writes]
    for (parts, name), (other_parts, other) in combinations(named, 2):
        assert parts == other_parts or name != other, (parts, other_parts)


@given(NAMES.filter(bool), st.sampled_from(QUERY_IDS), SINKS, TARGETS)
def test_names_begin_with_the_readable_one_as_acls_by_prefix_want_it(
    name: str, query_id: str, sink: str, target: str
) -> None:
    assert app_transactional_id(name, target).startswith(f"txnlog-app-{name}.")
    assert app_progress_group(name, target).startswith(f"{name}.progress.")
    named = query_transactional_id(None, name, query_id, sink)
    assert named.startswith(f"txnlog-{name}-{sink}" if sink else f"txnlog-{name}")


@given(st.text(min_size=1, max_size=300), SINKS.filter(bool))
def test_a_name_with_a_digest_is_not_longer_than_others(name: str, sink: str) -> None:
    made = [
        query_transactional_id(None, name, QUERY_IDS[0], sink),
        query_transactional_id(name, None, QUERY_IDS[0], sink),
        app_transactional_id(f"{name}.", "out"),
        app_progress_group(f"{name}.progress.", "out"),
    ]
    assert max(len(each.encode()) for each in made) <= NAME_BYTES_MAX


@pytest.mark.parametrize("group_id", ["orders", "eu.orders-2_x", "nightly.write-orders", "apps"])
def test_what_is_common_is_readable(group_id: str) -> None:
    query_id = QUERY_IDS[0]
    assert query_transactional_id(None, group_id, query_id, "") == f"txnlog-{group_id}"
    assert query_transactional_id(None, None, query_id, "") == f"txnlog-{query_id}"
    assert query_transactional_id(group_id, "g", query_id, "") == group_id
    assert app_transactional_id("etl", group_id) == f"txnlog-app-etl.{group_id}"
    assert app_progress_group(group_id, "*") == f"{group_id}.progress.*"
