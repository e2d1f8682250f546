"""Last epochs of a producer id, on both brokers: an id has 32,767 epochs, the last is reserved.

The tests follow KAFKA-19367, 20090, 18660 and 18464. A client is never given 32767 or a negative
epoch, and every transaction completes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.probe import wait_for, wait_until
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import create_topic
from support.harness.availability import check_available
from support.histories.transaction_presets import Preset, plant_transactions
from support.histories.transaction_steps import Side, build_sequence
from support.raw.raw import Connection, RawProducer, message_class

from broker_sim.core.transaction import TransactionState
from txnlog_kafka.wire.messages import ApiKey

S = TransactionState
TOPIC = "epochs"
LAST = 32766
SEEDS_PER_PRESET = 6
STEPS = 10
EPOCHS = (LAST - 2, LAST - 1, LAST, LAST + 1)
STATES = (S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
STORIES = {
    "init-ongoing-before-last": Preset("", LAST - 1, S.ONGOING),
    "init-ongoing-at-last": Preset("", LAST, S.ONGOING),
    "timeout-at-last": Preset("", LAST, S.ONGOING, timeout_ms=9_000, age_ms=10_000),
    "end-at-last": Preset("", LAST, S.EMPTY),
    "commit-then-empty-abort": Preset("", LAST - 1, S.EMPTY),
    "resume-at-last": Preset("", LAST, S.COMPLETE_COMMIT),
    "version-1-at-last": Preset("", LAST, S.EMPTY),
}


def _named(name: str, preset: Preset) -> Preset:
    partitions = ((TOPIC, 0),) if preset.state is S.ONGOING else ()
    return Preset(
        name, preset.epoch, preset.state, partitions, preset.timeout_ms, preset.age_ms,
        preset.client_version,
    )  # fmt: skip


def _random_presets() -> dict[int, Preset]:
    """Return the presets, by the seed of the sequence that starts from each."""
    cases = itertools.product(EPOCHS, STATES, range(SEEDS_PER_PRESET))
    return {
        seed: _named(f"random-{seed}", Preset("", epoch, state, client_version=number % 2 * 2))
        for seed, (epoch, state, number) in enumerate(cases)
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Callable:
    """`planted(kind)` is (broker, identities of the presets), started when first asked for."""
    kinds = {"broker_sim": SimBroker, "apache_kafka": ApacheKafka}
    started: dict = {}

    def start(name: str) -> tuple:
        check_available(name)
        if name not in started:
            broker = kinds[name](tmp_path_factory.mktemp(f"epochs-{name}"))
            broker.start()
            create_topic(broker.bootstrap_servers, TOPIC, 2)
            presets = [_named(*each) for each in STORIES.items()]
            presets += _random_presets().values()
            started[name] = (broker, plant_transactions(broker, presets))
        return started[name]

    yield start
    for broker, _ in started.values():
        broker.stop()


@pytest.fixture
def holder(planted, broker_name):
    """`holder(story)` is a producer that holds the identity of the preset."""
    broker, identities = planted(broker_name)
    with Connection(broker.port) as connection:

        def of(story: str) -> RawProducer:
            producer = RawProducer(connection, story)
            assert producer.find_coordinator() == "NONE"
            producer.producer_id, producer.producer_epoch = identities[story]
            return producer

        yield of


def test_init_of_an_ongoing_transaction_before_the_last_epoch_gives_a_new_producer_id(holder):
    """B14 a: the fence raises the epoch once, to the last; the client's retry finds it used up."""
    producer = holder("init-ongoing-before-last")
    old_id = producer.producer_id
    assert producer.init() == "NONE"
    assert producer.producer_id != old_id
    assert producer.producer_epoch == 0


def test_init_of_an_ongoing_transaction_at_the_last_epoch_goes_on_with_the_next_producer_id(holder):
    """B14 a, KAFKA-19367: the abort moves on by itself, and the retry raises the new epoch."""
    producer = holder("init-ongoing-at-last")
    old_id = producer.producer_id
    assert producer.init() == "NONE"
    assert producer.producer_id != old_id
    assert producer.producer_epoch == 1
    assert producer.produce(TOPIC, 1, "goes on", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"


def test_a_late_abort_after_a_timeout_at_the_last_epoch_gets_the_new_identity(holder):
    """B14 b, KAFKA-20090."""
    producer = holder("timeout-at-last")
    old = producer.identity
    producer.retries = False

    def late_abort() -> tuple[str, int]:
        producer.producer_id, producer.producer_epoch = old
        return producer.end(commit=False, version=5), producer.producer_epoch

    wait_for(late_abort, ("NONE", 0))
    producer.retries = True
    assert producer.producer_id != old[0]
    assert producer.produce(TOPIC, 1, "goes on", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"


def test_the_end_at_the_last_epoch_answers_a_new_producer_id_that_does_not_fence_itself(holder):
    """B14 c, KAFKA-18660: from the answer on, also while the markers are written."""
    producer = holder("end-at-last")
    old = producer.identity
    assert producer.produce(TOPIC, 1, "last", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    new = producer.identity
    assert new[0] != old[0]
    assert new[1] == 0
    assert producer.add_partitions(TOPIC, 1) == "NONE"
    # With the next transaction begun, the old identity is nobody's.
    producer.producer_id, producer.producer_epoch = old
    assert producer.end(commit=True, version=5) == "INVALID_PRODUCER_ID_MAPPING"
    producer.producer_id, producer.producer_epoch = new
    assert producer.end(commit=False, version=5) == "NONE"
    assert producer.identity == (new[0], 1)


def test_a_commit_and_then_an_empty_abort_use_up_the_epoch(holder):
    """B14 d, KAFKA-18464."""
    producer = holder("commit-then-empty-abort")
    old = producer.identity
    assert producer.produce(TOPIC, 1, "last but one", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    assert producer.identity == (old[0], LAST)
    assert producer.end(commit=False, version=5) == "NONE"
    assert producer.producer_id != old[0]
    assert producer.producer_epoch == 0
    # The answer was lost: the retry is told the same.
    new = producer.identity
    producer.producer_id, producer.producer_epoch = old[0], LAST
    assert producer.end(commit=False, version=5) == "NONE"
    assert producer.identity == new


def test_a_client_that_resumes_at_the_last_epoch_gets_a_new_producer_id_and_so_does_its_retry(
    holder,
):
    """KIP-360 at its end."""
    producer = holder("resume-at-last")
    old = producer.identity
    assert producer.init(resume=True) == "NONE"
    new = producer.identity
    assert (new[0] != old[0], new[1]) == (True, 0)
    producer.producer_id, producer.producer_epoch = old
    assert producer.init(resume=True) == "NONE"
    assert producer.identity == new
    producer.producer_id, producer.producer_epoch = old[0], LAST - 1
    assert producer.init(resume=True) == "PRODUCER_FENCED"


def test_in_version_1_the_last_epoch_serves_any_number_of_transactions(holder):
    producer = holder("version-1-at-last")
    old = producer.identity
    for commit in (True, False, True):
        assert producer.add_partitions(TOPIC, 1) == "NONE"
        assert producer.end(commit=commit) == "NONE"
    assert producer.identity == old
    assert producer.init() == "NONE"
    assert (producer.producer_id != old[0], producer.producer_epoch) == (True, 0)


def has_timed_out(connection: Connection) -> bool:
    """Return True if the preset that times out has ended; its markers would disturb other reads."""
    request = message_class(ApiKey.DESCRIBE_TRANSACTIONS)(transactional_ids=["timeout-at-last"])
    state = connection.ask(request, 0).transaction_states[0].transaction_state
    return state in ("Empty", "CompleteAbort", "CompleteCommit")


@pytest.mark.kafka
def test_random_requests_near_the_last_epoch_are_answered_alike(planted):
    presets = _random_presets()
    told: dict[int, list] = {seed: [] for seed in presets}
    for name in ("broker_sim", "apache_kafka"):
        broker, identities = planted(name)
        with Connection(broker.port) as connection:
            wait_until(lambda c=connection: has_timed_out(c), "the markers of what times out")
            for seed, preset in presets.items():
                name = preset.transactional_id
                side = Side(connection, TOPIC, name, name, shows_coordinator_epochs=False)
                side.adopt(identities[name])
                steps = build_sequence(10_000 + seed, STEPS)[1:]
                told[seed].append([*((step, side.ask(step)) for step in steps), side.finish()])
                assert all(0 <= epoch <= LAST for epoch in side.epochs), (seed, side.epochs)
    differing = {seed: sides for seed, sides in told.items() if sides[0] != sides[1]}
    for seed, (ours, theirs) in differing.items():
        first = next(
            i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]
        )
        pytest.fail(
            f"{len(differing)} of {len(told)} differ; {presets[seed]} after {ours[:first]}:\n"
            f"ours   {ours[first]}\ntheirs {theirs[first]}"
        )
