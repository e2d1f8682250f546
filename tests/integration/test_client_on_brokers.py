"""The client's operations on real brokers, ours and Apache Kafka, on both transaction versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from support.brokers.apache_kafka import ApacheKafka, Node, new_cluster_id
from support.brokers.probe import wait_for, wait_until
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import TIMEOUT_S, consumer, create_topic, transactional
from support.harness.availability import check_available
from support.query.commit_plans import (
    build_plan,
    changed,
    commit_on,
    committing,
    new_checkpoint,
    record_batch,
    staged,
)
from support.query.staged_pieces import piece_of
from support.raw.raw import Connection
from support.raw.raw_admin import ZERO_ID, delete_topics, topic_id, wait_until_gone

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.calls import fetch_broker_config
from txnlog_kafka.operations.cluster_view import topic_id_text
from txnlog_kafka.operations.effects import (
    Call,
    Calls,
    Failpoint,
    Operation,
    Outcome,
    Unanswered,
)
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, fetch_committed
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.operations.transaction import init_producer_id
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.codec.decode import decode_batches
from txnlog_spark.commit.checkpoint import SourceEnd
from txnlog_spark.errors import (
    DeadlineExceeded,
    FatalError,
    OffsetOutOfRange,
    ProducerFenced,
    TxnLogError,
    UnknownTopic,
    WrongCluster,
)
from txnlog_spark.offsets import SourceNote
from txnlog_testing.failpoints import STEPS

pytestmark = pytest.mark.live


@pytest.fixture
def client(broker):
    with Client(broker.bootstrap_servers) as each:
        yield each


@pytest.fixture
def names(unique):
    """Names of one test's topics, groups and ids."""
    return {n: unique(n) for n in ("out", "in", "t", "g", "progress")}


def make_topics(client, names, partitions=2):
    client.create_topic(names["out"], partitions=partitions)
    client.create_topic(names["in"], partitions=1)


def plan_for(names, batch_id=0, parts=None, **changes):
    """The usual five records, under this test's names."""
    out = names["out"]
    if parts is None:
        parts = (
            *staged(out, 0, record_batch(f"{batch_id}.a", f"{batch_id}.b"), record_batch("c")),
            *staged(out, 1, record_batch(f"{batch_id}.d"), record_batch(f"{batch_id}.e")),
        )
    values = {
        "staged": parts,
        "transactional_id": names["t"],
        "group_id": names["g"],
        "progress_group_id": names["progress"],
        "source_offsets": {(names["in"], 0): batch_id + 1},
        "source_digest": f"digest-{batch_id}",
    }
    return build_plan(batch_id, **values | changes)


def read_all(client, topic, partition, *, read_committed=True):
    """The values that a reader of this isolation level sees now."""
    latest = {(topic, partition): LATEST_TIMESTAMP}
    end = client.list_offsets(latest, read_committed=read_committed)[topic, partition].offset
    found, position = [], 0
    for got in client.fetch_range(
        topic,
        partition,
        start_offset=0,
        end_offset=end,
        read_committed=read_committed,
        max_bytes=200_000,
    ):
        columns = decode_batches(
            got.data, start_offset=position, end_offset=end, aborted=got.aborted
        )
        found += columns.values.to_pylist()
        position = max(position, got.next_offset)
    return found


def seen(client, names):
    return [read_all(client, names["out"], p) for p in (0, 1)]


def expected(*batch_ids):
    return [
        [v.encode() for n in batch_ids for v in (f"{n}.a", f"{n}.b", "c")],
        [v.encode() for n in batch_ids for v in (f"{n}.d", f"{n}.e")],
    ]


def with_steps(operation, on_reached):
    """The operation, calling `on_reached(step, when)` at its failpoints; it is told of an error."""
    ask = next(operation)
    while True:
        try:
            if isinstance(ask, Failpoint):
                on_reached(ask.step, ask.when)
            outcome = yield ask
        except Exception as error:
            ask = operation.throw(error)
        else:
            try:
                ask = operation.send(outcome)
            except StopIteration as stop:
                return stop.value


def test_version_1_brokers_get_the_same_promises(new_broker, names):
    running = new_broker(transaction_version=1)
    files = new_checkpoint()
    with Client(running.bootstrap_servers) as client:
        make_topics(client, names)
        for batch_id in range(3):
            assert commit_on(client, plan_for(names, batch_id), files).transaction_version == 1
        wait_for(lambda: seen(client, names), expected(0, 1, 2))


@pytest.mark.parametrize(
    "step", ["add_partitions", "produce.first", "txn_offset_commit", "end_txn"]
)
def test_a_takeover_in_mid_transaction_leaves_one_copy(broker, client, names, step):
    """docs/internals/faults.md B44: the old driver goes on after a new one has done the batch."""
    make_topics(client, names)
    plan, files = plan_for(names), new_checkpoint()

    def take_over(at, when):
        if at == step and (when == "before" or "." in step):
            with Client(broker.bootstrap_servers) as other:
                assert not commit_on(other, changed(plan, run_id="run-2"), files).skipped

    operation = committing(client, plan, files)
    with pytest.raises(ProducerFenced):
        client.run(with_steps(operation, take_over))
    wait_for(lambda: seen(client, names), expected(0))


class DriverGone(TxnLogError):
    """Stands for a SIGKILL: nothing is sent after it."""


@pytest.mark.parametrize("step", [s for s in STEPS if s not in ("produce", "produce.middle")])
def test_a_driver_killed_after_any_step_leaves_all_or_nothing(broker, client, names, step):
    """Rows D of docs/internals/faults.md without Spark: the restart skips or does the batch."""
    make_topics(client, names)
    plan, files = plan_for(names), new_checkpoint()
    old = Client(broker.bootstrap_servers)
    operation = committing(old, plan, files)

    def stop_at(at, when):
        if (at, when) == (step, "after"):
            old.close()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        old.run(with_steps(operation, stop_at))
    outcome = commit_on(client, changed(plan, run_id="run-2"), files)
    assert outcome.skipped == (step == "end_txn")
    wait_for(lambda: seen(client, names), expected(0))


@pytest.mark.live("end_txn")
@pytest.mark.parametrize(
    "step", ["init_producer_id", "add_partitions", "produce.first", "txn_offset_commit", "end_txn"]
)
def test_a_broker_killed_in_mid_commit_is_waited_for(new_broker, names, step):
    """The batch is committed by the same driver once the broker is back."""
    running = new_broker()
    with Client(running.bootstrap_servers) as client:
        make_topics(client, names)
        files = new_checkpoint()
        operation = committing(client, plan_for(names), files)

        def kill(at, when):
            if at == step and (when == "before" or "." in step):
                running.restart()

        outcome = client.run(with_steps(operation, kill))
        assert not outcome.skipped
        wait_for(lambda: seen(client, names), expected(0))
        assert commit_on(client, plan_for(names), files).skipped


def test_an_abort_is_invisible_to_read_committed_and_there_for_read_uncommitted(client, names):
    make_topics(client, names)

    def fail(step, when):
        if (step, when) == ("end_txn", "before"):
            raise DriverGone("no commit")

    files = new_checkpoint()
    with pytest.raises(DriverGone):
        client.run(with_steps(committing(client, plan_for(names), files), fail))
    commit_on(client, plan_for(names), files)
    wait_for(lambda: seen(client, names), expected(0))
    dirty = read_all(client, names["out"], 0, read_committed=False)
    assert dirty == expected(0)[0] * 2


def test_a_large_batch_streams_through(client, names):
    """Many requests in flight, every record once and in order."""
    make_topics(client, names)
    rows = 20_000

    def pieces(p: int) -> Iterator[bytes]:
        for start in range(0, rows, 500):
            yield record_batch(*(f"{p}.{i}" + "x" * 90 for i in range(start, start + 500)))

    parts = tuple(piece_of(data, names["out"], p) for p in (0, 1) for data in pieces(p))
    outcome = commit_on(client, plan_for(names, parts=parts))
    assert outcome.produced_records == 2 * rows
    for p in (0, 1):
        wait_until(lambda p=p: read_all(client, names["out"], p)[:1] != [], "the commit marker")
        found = read_all(client, names["out"], p)
        assert found == [f"{p}.{i}".encode() + b"x" * 90 for i in range(rows)]


# ------------------------------------------------------------------ administration


@pytest.mark.matrix
def test_topics_offsets_and_groups_are_administered(broker, client, names):
    make_topics(client, names)
    out = names["out"]
    assert client.topic_partitions([out]) == {out: (0, 1)}
    assert out in client.topic_partitions(None)
    with pytest.raises(FatalError, match="TOPIC_ALREADY_EXISTS"):
        client.create_topic(out, partitions=1)
    client.create_topic(out, partitions=1, exists_ok=True)
    client.commit_offsets(names["g"], {(out, 0): 7})
    assert client.committed_offsets(names["g"]) == {(out, 0): 7}
    assert names["g"] in [group.group_id for group in client.list_groups()]
    client.delete_group(names["g"])
    assert client.committed_offsets(names["g"]) == {}
    client.delete_group(names["g"], missing_ok=True)
    with Connection(broker.port) as connection:
        delete_topics(connection, (out, ZERO_ID))
        wait_until_gone(connection, out)
    with pytest.raises(UnknownTopic, match=out):
        client.topic_partitions([out])


def test_offsets_of_a_source_topic_that_was_created_again_do_not_become_the_new_ones(
    broker, client, names
):
    """The batch was planned before (KIP-1319). A batch that read the new topic is committed."""
    make_topics(client, names)
    read = names["in"]

    def source(end):
        with Connection(broker.port) as connection:
            text = topic_id_text(topic_id(connection, read).bytes)
        return SourceEnd("", {TopicPartition(read, 0): end}, SourceNote("c", "g", ((read, text),)))

    former = source(1)
    with Connection(broker.port) as connection:
        delete_topics(connection, (read, ZERO_ID))
        wait_until_gone(connection, read)
    client.create_topic(read, partitions=1)
    files = new_checkpoint()
    outcome = commit_on(client, plan_for(names, 0, sources=(former,)), files)
    assert outcome.missing_sources == {(read, 0)}
    assert client.committed_offsets(names["g"]) == {}
    outcome = commit_on(client, plan_for(names, 1, sources=(source(2),)), files)
    assert not outcome.missing_sources
    wait_for(lambda: client.committed_offsets(names["g"]), {(read, 0): 2})
    wait_for(lambda: seen(client, names), expected(0, 1))


def test_offsets_are_found_by_timestamp(client, names):
    make_topics(client, names)
    commit_on(client, plan_for(names))
    at = (names["out"], 0)
    wait_until(lambda: read_all(client, *at) != [], "the commit marker")
    found = client.list_offsets({at: 1}, read_committed=True)[at]
    assert (found.offset, found.timestamp_ms) == (0, 1)
    assert client.list_offsets({at: 10**15}, read_committed=True)[at].offset == -1
    assert client.list_offsets({at: EARLIEST_TIMESTAMP}, read_committed=True)[at].offset == 0


def test_an_offset_that_is_gone_is_data_loss(client, names):
    make_topics(client, names)
    with pytest.raises(OffsetOutOfRange) as caught:
        list(client.fetch_range(names["out"], 0, start_offset=5, end_offset=9))
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 0)


def test_transactions_are_listed_and_described(client, names):
    make_topics(client, names)
    assert client.describe_transaction(names["t"]) is None
    plan = plan_for(names)
    commit_on(client, plan)
    found = client.describe_transaction(names["t"])
    assert found.timeout_ms == plan.committer.options.transaction_timeout_ms
    assert names["t"] in {t.transactional_id for t in client.list_transactions()}


# ------------------------------------------------------------------ refusals


def test_a_transaction_timeout_over_the_brokers_is_told_with_both_values(client, names):
    with pytest.raises(FatalError) as caught:
        client.run(init_producer_id(client.session, names["t"], 1_800_000))
    text = str(caught.value)
    assert "INVALID_TRANSACTION_TIMEOUT" in text
    assert "transaction.timeout.ms=1800000" in text
    assert "transaction.max.timeout.ms=900000" in text


def test_a_config_of_a_broker_is_had_by_its_name(client):
    client.run(refresh_metadata(client.session, ()))
    found = client.run(fetch_broker_config(client.session, "transaction.max.timeout.ms"))
    missing = client.run(fetch_broker_config(client.session, "no.such.name"))
    assert (found, missing) == ("900000", None)


def test_offsets_pending_by_another_transactional_id_are_told(broker, client, names):
    topic, group = create_topic(broker.bootstrap_servers, names["in"]), names["g"]
    holder = transactional(broker.bootstrap_servers, names["t"])
    member = consumer(broker.bootstrap_servers, group)
    holder.begin_transaction()
    holder.send_offsets_to_transaction(
        [Place(topic, 0, 5)], member.consumer_group_metadata(), TIMEOUT_S
    )
    client.run(fetch_committed(client.session, group, require_stable=False))
    client.session.config = SessionConfig(operation_timeout_ms=2_000)
    with pytest.raises(DeadlineExceeded) as caught:
        client.run(fetch_committed(client.session, group, partitions=[(topic, 0)]))
    assert "UNSTABLE_OFFSET_COMMIT" in str(caught.value)
    assert "maybe of another transactional id" in str(caught.value)
    holder.abort_transaction(TIMEOUT_S)
    member.close()


def two_clusters(kind: str, folder: Path) -> tuple[Any, Any]:
    """Return a broker, and a broker of another cluster with the same id and port."""
    if kind == "apache_kafka":
        node = Node.alone()
        other = Node(node.number, node.port, node.controllers, new_cluster_id())
        return ApacheKafka(folder / "a", node=node), ApacheKafka(folder / "b", node=other)
    first = SimBroker(folder / "a")
    return first, SimBroker(folder / "b", ports=first.ports)


@pytest.mark.parametrize(
    "kind",
    [
        "broker_sim",
        pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.weekly]),
    ],
)
def test_a_broker_of_another_cluster_is_refused_at_the_first_request(
    kind: str, tmp_path: Path
) -> None:
    """KIP-1242. The topics there may have the names and the offsets of the cluster before."""
    check_available(kind)
    first, second = two_clusters(kind, tmp_path)

    def ask(node: int) -> Operation[tuple[Outcome, ...]]:
        message = APIS[ApiKey.METADATA].request(topics=[])
        outcomes: tuple[Outcome, ...] = yield Calls((Call(node, message, 20_000),))
        return outcomes

    with Client(first.bootstrap_servers) as client:
        with first:
            client.run(refresh_metadata(client.session, ()))
            (node,) = client.session.cluster.nodes
        with second:
            (outcome,) = client.run(ask(node))
            assert isinstance(outcome, Unanswered)
            assert not outcome.sent
            assert f"is not broker {node} of cluster" in outcome.reason
            with pytest.raises(WrongCluster):
                client.run(refresh_metadata(client.session, ()))
