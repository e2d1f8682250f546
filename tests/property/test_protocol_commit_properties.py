"""Any mixture of faults, kills, takeovers and timeouts: every batch exactly once, in order."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core.core_broker import TIMEOUTS_CHECKED_MS, CoreBroker
from support.core.scripted_faults import ANSWER_LOST, LOST, NOT_SENT, applied_but, refused
from support.query.commit_plans import (
    QUERY,
    build_plan,
    changed,
    check_wire_discipline,
    commit,
    logged,
    record_batch,
    staged,
)

from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.commit.checkpoint import parse_batch_offsets
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.errors import TxnLogError
from txnlog_testing.failpoints import STEPS

BATCHES = 4
RESTARTS_MAX = 60

FAULTS = st.sampled_from(
    [
        LOST,
        ANSWER_LOST,
        NOT_SENT,
        refused(E.NOT_COORDINATOR),
        refused(E.CONCURRENT_TRANSACTIONS),
        refused(E.NOT_LEADER_OR_FOLLOWER),
        refused(E.NOT_ENOUGH_REPLICAS),
        refused(E.OUT_OF_ORDER_SEQUENCE_NUMBER),
        refused(E.INVALID_PRODUCER_EPOCH),
        refused(E.PRODUCER_FENCED),
        refused(E.TRANSACTION_ABORTABLE),
        refused(E.UNKNOWN_SERVER_ERROR),
        applied_but(E.COORDINATOR_NOT_AVAILABLE),
        applied_but(E.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        applied_but(E.REQUEST_TIMED_OUT),
        None,
    ]
)
REQUESTS = st.sampled_from(
    [
        K.FIND_COORDINATOR,
        K.INIT_PRODUCER_ID,
        K.OFFSET_FETCH,
        K.ADD_PARTITIONS_TO_TXN,
        K.PRODUCE,
        K.ADD_OFFSETS_TO_TXN,
        K.TXN_OFFSET_COMMIT,
        K.END_TXN,
    ]
)
PLACES = st.tuples(
    st.integers(0, BATCHES - 1), st.sampled_from(STEPS), st.sampled_from(["before", "after"])
)
HAPPENINGS = st.sampled_from(["kill", "time out", "rival"])


class Killed(BaseException):
    """The driver is gone: its generator is dropped."""


def entry_of(number: int) -> str:
    return 'v1\n{}\n{"in":{"0":' + f"{number + 1}" + "}}"


def plan_of(number: int, run: int = 0):
    return build_plan(
        number,
        run_id=f"run-{run}",
        staged=(
            *staged("out", 0, record_batch(f"{number}.a"), record_batch(f"{number}.b")),
            *staged("out", 1, *(record_batch(f"{number}.{i}") for i in range(4))),
        ),
        source_offsets={("in", 0): number + 1},
        source_digest=f"digest-{number}",
        batch_hash=parse_batch_offsets("offsets", entry_of(number)).batch_hash,
        produce_request_bytes=100,
    )


def cluster_of(version: int) -> CoreBroker:
    """Return a cluster with Spark's log entry of each batch."""
    cluster = CoreBroker(version)
    for number in range(BATCHES):
        logged(cluster, number, entry_of(number))
    return cluster


def happen(cluster, plan, what):
    """Act at a failpoint, once."""
    if what == "kill":
        raise Killed
    if what == "time out":
        cluster.stand_still(plan.committer.options.transaction_timeout_ms + TIMEOUTS_CHECKED_MS)
    if what == "rival":
        asleep, cluster.on_reached = cluster.on_reached, lambda _step, _when: None
        with contextlib.suppress(TxnLogError):
            commit(cluster, changed(plan, run_id="rival"))
        cluster.on_reached = asleep


@pytest.mark.invariant(35)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    version=st.sampled_from([1, 2]),
    faults=st.lists(st.tuples(REQUESTS, FAULTS), max_size=12),
    places=st.dictionaries(PLACES, HAPPENINGS, max_size=4),
)
def test_every_batch_is_visible_exactly_once_and_in_order(version, faults, places):
    cluster = cluster_of(version)
    for api_key, fault in faults:
        cluster.script(api_key, fault)
    pending = dict(places)
    session = cluster.session()
    run = number = 0
    while number < BATCHES:
        plan = plan_of(number, run)

        def reached(step, when, number=number, plan=plan):
            what = pending.pop((number, step, when), None)
            if what is not None:
                happen(cluster, plan, what)

        cluster.on_reached = reached
        try:
            commit(cluster, plan, session)
            number += 1
        except (TxnLogError, Killed):
            run, session = run + 1, cluster.session()
            assert run <= RESTARTS_MAX, "never done"
    check_outcome(cluster)


def check_outcome(cluster):
    expected = [f"{n}.{x}".encode() for n in range(BATCHES) for x in "ab"]
    assert cluster.committed_values("out", 0) == expected
    expected = [f"{n}.{i}".encode() for n in range(BATCHES) for i in range(4)]
    assert cluster.committed_values("out", 1) == expected
    assert cluster.offsets("g")["in", 0] == (BATCHES, "")
    found = cluster.run(fetch_progress(cluster.session(), "t.progress.query-1", QUERY))
    assert (found.next_batch_id, found.source_digest) == (BATCHES, f"digest-{BATCHES - 1}")
    check_wire_discipline(cluster)


@pytest.mark.invariant(35)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(version=st.sampled_from([1, 2]), fault=FAULTS, api_key=REQUESTS)
def test_a_run_tries_its_batch_again_whatever_became_of_the_last_try(version, fault, api_key):
    """A function of `foreach_batch` may be called again by code that caught the error."""
    cluster = cluster_of(version)
    session = cluster.session()
    for number in range(BATCHES):
        cluster.script(api_key, fault if number else None)
        for _ in range(RESTARTS_MAX):
            with contextlib.suppress(TxnLogError):
                commit(cluster, plan_of(number), session)
                break
        cluster.faults.clear()
    check_outcome(cluster)
