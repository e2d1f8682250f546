"""What a simulation is to do: a scenario, declared as data (`scenarios/*.toml`).

A scenario fixes what its file says; what it leaves open is drawn from the seed. So a crash after
PREPARE is one file, and it is still run under many network timings.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

SCENARIO_DIRECTORY = Path(__file__).resolve().parent / "scenarios"
"""Part of the package: an installed one has the same scenarios as a checkout."""
RANDOM = "random"
"""The default scenario: faults of every kind, drawn from the seed."""
THREE_BROKERS = "cluster"
"""The same with three brokers, and what can happen to them."""
DRAWN = (RANDOM, THREE_BROKERS)


class ScenarioError(ValueError):
    """A scenario that cannot be used; the text says which field of which file."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault, which fires once: when `on` has happened `occurrence` times.

    `on` names a storage operation by what it appends: `data`, `offsets`, `marker`, or a state of
    the transaction log such as `prepare-commit`; the broker dies right after it, or after the next
    flush when `flushed`. `on = "step"` names a step of the commit protocol reached by a driver,
    `when` before or after it; `action` then is `kill`, `pause`, `kill-broker`, `copy`: the driver's
    checkpoint is copied, or `isolate`: the coordinator of the query's progress hears no other
    broker for `pause_ms`, and clients reach it.
    """

    on: str
    occurrence: int = 1
    flushed: bool = False
    power_loss: bool = False
    down_ms: int = 500
    step: str = ""
    when: str = "after"
    batch_id: int = 0
    action: str = "kill"
    pause_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class Expect:
    """What the run must have shown besides the invariants: at least so many of each."""

    skipped: int = 0
    fenced: int = 0
    aborted: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run depends on besides its seed. None is drawn from the seed."""

    name: str = RANDOM
    description: str = ""
    brokers: int = 1
    """1, or 3 with a registry and everything on all of them."""
    batches: int = 6
    rows_per_batch: int = 12
    source_partitions: int = 2
    output_partitions: int = 3
    empty_batches: float = 0.0
    """The share of batches without rows; with 0 every batch has some."""
    transaction_version: int | None = None
    transaction_timeout_ms: int = 15_000
    chaos_ms: int = 60_000
    broker_crash: float = 0.0
    """Per storage operation."""
    power_loss: float = 0.0
    """The share of broker crashes that lose what was not flushed."""
    driver_kill: float = 0.0
    """Per step of the commit protocol."""
    driver_pause: float = 0.0
    """Per step: the driver stops, another takes over, the first goes on as a zombie."""
    driver_pause_ms: int = 40_000
    """At most."""
    driver_power_loss: float = 0.0
    """Per killed driver: its whole machine loses power, and files that were not flushed suffer."""
    worker_loss: float = 0.0
    """Per batch: the Python worker that commits it is a new one, which remembers nothing."""
    worker_kill: float = 0.0
    """Per step of the commit: the Python worker that commits is killed; its connections close."""
    tries_again: float = 0.0
    """Per batch that has failed, or is committed: the function given to foreachBatch writes it
    again in the same run, its rows in another order."""
    staging_fault: float = 0.0
    """Per read of a staged piece: the staging server ends, stands still, or gives other bytes."""
    driver_clock: float = 0.0
    """Per step: the clocks of a driver's machine go faster or slower from then on, by which it
    waits, or its wall clock jumps, by which records without a time have theirs."""
    tasks: int = 1
    """Of a batch, where it has rows enough (`minPartitions` of the source)."""
    task_failure: float = 0.0
    """Per attempt of a task: it fails before, while or after it stages; Spark starts another."""
    speculation: float = 0.0
    """Per task: two attempts run at the same time, and Spark takes the message of one of them."""
    executor_loss: float = 0.0
    """Per batch: an executor is lost, with the attempts that run there; with `staging_files` also
    with what attempts have staged there."""
    staging_files: bool = False
    """Tasks stage in files, which all drivers of a query share and remove."""
    inline_bytes: int = 0
    """An attempt that stages at most so many bytes sends them in its commit message."""
    store_failure: float = 0.0
    """Per file of the checkpoint that is read or written: the store says that it failed."""
    store_ms: int = 20
    """How long it takes at most."""
    checkpoint_lost: float = 0.0
    """Per restart: a new, empty checkpoint, from the group's committed offsets."""
    tail_lost: float = 0.0
    """Per restart: the newest one or two batches are missing from the checkpoint."""
    old_checkpoint: float = 0.0
    """Per restart: one of all checkpoints so far, by mistake."""
    id_change: float = 0.0
    """Per restart: the query gets another transactional id."""
    topic_change: float = 0.0
    """Per restart: the query writes to its other topic from now on."""
    moved: float = 0.0
    """Per restart: the checkpoint was moved to another place."""
    copied: float = 0.0
    """Per step, once in a run: a copy of the checkpoint becomes a query of its own, with a group
    and a transactional id of its own."""
    sinks: int = 1
    """Two that a function given to foreachBatch writes to one after the other, each with a topic of
    its own; at times it fails between them."""
    leaves_out: bool = False
    """The function given to foreachBatch writes nothing of a batch without rows."""
    second_query: bool = False
    """Another query has the same transactional id by mistake, while faults happen."""
    connection_loss: float = 0.0
    """Per message."""
    spike: float = 0.0
    """Per message: a delay of up to `spike_ms`."""
    spike_ms: int = 8_000
    group_partitions: int = 2
    """Of __consumer_offsets: with 1, one broker coordinates all groups."""
    compaction: bool = False
    """The logs of the coordinators have tiny segments, and the log cleaner works all the time."""
    clock_jump: float = 0.0
    """Per broker start: the wall clock jumps by up to an hour, either way."""
    neighbours: int = 0
    """Other applications with transactions of their own, many at the same instant."""
    neighbours_abort: bool = False
    """They abort what they do not go on with, and begin again much later."""
    late: float = 0.0
    """Per request: it arrives after its client has given it up (`network.LinkConditions`)."""
    duplicate: float = 0.0
    """Per request: its client has given it up, and its bytes arrive twice
    (`network.LinkConditions`)."""
    registry_crash: float = 0.0
    """Of a cluster, as all below: per storage operation of the registry."""
    broker_pause: float = 0.0
    """Per tick of `cluster_faults`: a broker or the registry stands still."""
    partition: float = 0.0
    """Per tick: some cannot hear each other."""
    isolation: float = 0.0
    """Per tick: the coordinator of the query's progress cannot hear the cluster, only clients."""
    clean_stop: float = 0.0
    """Per tick: a broker hands over what it leads, and stops."""
    blackout: float = 0.0
    """Per tick, where `flushes_all`: all machines lose power."""
    members: int = 0
    """Of a consumer group beside the query."""
    static_members: int = 0
    """The first so many have a group.instance.id."""
    copiers: bool = False
    """They write what they read in transactions, with their offsets."""
    member_fault: float = 0.0
    """Per step of a member: it is killed, or stands still."""
    administrator: bool = False
    """Replicas are moved, leaders elected, options changed, partitions added."""
    passing_topic: bool = False
    """A topic is deleted and created again with the same name, all the time."""
    unsafe_topic: bool = False
    """A topic beside the query's is not flushed, and may have unclean elections."""
    lonely_leader: bool = False
    """Its leader is left by the others and dies, again and again."""
    pipelined: bool = False
    """A producer has five batches in flight (`pipelined_writer`); no broker may die."""
    flapping: bool = False
    """Two brokers cannot hear each other again and again, and proposals of ISRs are late."""
    small_segments: bool = False
    """A segment holds a few batches."""
    flushes_all: bool = False
    """Every append is flushed before it is answered, by followers too."""
    disk_full: float = 0.0
    """Per tick of `disk_faults`, of one broker too: a disk is full for a while."""
    flush_failure: float = 0.0
    """Per flush, of one broker too: it fails, and the process ends."""
    client_partition: float = 0.0
    """Per tick: a client and brokers cannot hear each other."""
    clog: float = 0.0
    """Per tick: some links hold back what they are given, for a while."""
    clock_drift: float = 0.0
    """Per tick: the clocks of a machine go faster or slower, for a while."""
    bit_flip: float = 0.0
    """Per death of a broker: a bit of its files flips."""
    disk_loss: float = 0.0
    """Per tick: a broker's machine loses power, and all of its disk, while others have the same."""
    faults: tuple[Fault, ...] = ()
    expect: Expect = field(default_factory=Expect)

    @property
    def may_be_copied(self) -> bool:
        """Whether the checkpoint may be."""
        return self.copied > 0.0 or any(fault.action == "copy" for fault in self.faults)

    @property
    def has_task_faults(self) -> bool:
        """Whether tasks take their time, as some fail or are run twice."""
        return max(self.task_failure, self.speculation, self.executor_loss) > 0.0

    @property
    def has_old_clients(self) -> bool:
        """Whether some have transactions that do not raise the epoch, whatever the version is."""
        copies = self.copiers and self.members > 0
        return self.neighbours > 0 or copies or self.passing_topic or self.unsafe_topic


def draw_random(seed: int) -> Scenario:
    """The scenario `random`: a swarm, each kind of fault on or off and of drawn strength."""
    rng = random.Random(f"{seed}/scenario")

    def some(low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < 0.6 else 0.0

    def seldom(low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < 0.3 else 0.0

    # A person that loses a checkpoint has to keep the transactional id: a new one has no record of
    # the old.
    changes_id = rng.random() < 0.25
    made = Scenario(
        description="faults of every kind, drawn from the seed",
        batches=rng.randint(2, 8),
        rows_per_batch=rng.choice((1, 5, 20, 60)),
        source_partitions=rng.randint(1, 3),
        output_partitions=rng.randint(1, 4),
        empty_batches=0.1,
        transaction_timeout_ms=rng.choice((3_000, 15_000, 60_000)),
        broker_crash=some(0.0005, 0.02),
        power_loss=rng.choice((0.0, 0.5, 1.0)),
        driver_kill=some(0.005, 0.08),
        driver_pause=some(0.005, 0.05),
        driver_power_loss=some(0.1, 0.5),
        worker_loss=some(0.1, 0.9),
        staging_fault=some(0.005, 0.1),
        checkpoint_lost=0.0 if changes_id else some(0.05, 0.3),
        tail_lost=0.0 if changes_id else some(0.05, 0.3),
        old_checkpoint=0.0 if changes_id else some(0.05, 0.3),
        id_change=rng.uniform(0.2, 0.6) if changes_id else 0.0,
        second_query=rng.random() < 0.15,
        connection_loss=some(0.001, 0.03),
        spike=some(0.001, 0.03),
        clock_jump=some(0.1, 0.5),
        neighbours=rng.choice((0, 0, 0, 3)),
        disk_full=seldom(0.01, 0.05),
        flush_failure=seldom(0.0005, 0.01),
    )
    drawn = _draw_tasks(seed) | _draw_store(seed) | _draw_ids(seed, made) | _draw_caller(seed)
    return replace(made, **drawn | _draw_outputs(seed))


def _draw_outputs(seed: int) -> dict[str, Any]:
    """In some seeds a query has several outputs, or its checkpoint several places. Both need a
    checkpoint that is not lost, and one thing about an output that changes at a time."""
    rng = random.Random(f"{seed}/outputs-scenario")
    kept = {"checkpoint_lost": 0.0, "tail_lost": 0.0, "old_checkpoint": 0.0, "id_change": 0.0}
    kinds: Sequence[dict[str, Any]] = (
        kept | {"sinks": 2},
        kept | {"copied": rng.uniform(0.01, 0.1)},
        {"id_change": 0.0, "moved": rng.uniform(0.2, 0.6)},
        kept | {"topic_change": rng.uniform(0.2, 0.6)},
    )
    drawn: dict[str, Any] = dict(rng.choice(kinds)) if rng.random() < 0.3 else {}
    if rng.random() < 0.1:
        drawn |= {"leaves_out": True, "empty_batches": 0.4, "tail_lost": 0.0}
    if rng.random() < 0.1:
        drawn["driver_pause_ms"] = 200_000
    return drawn


def _draw_caller(seed: int) -> dict[str, Any]:
    """In some seeds batches are written in foreachBatch, by a function that tries again."""
    rng = random.Random(f"{seed}/caller-scenario")
    if rng.random() >= 0.15:
        return {}
    return {"worker_kill": rng.uniform(0.005, 0.1), "tries_again": rng.uniform(0.2, 0.9)}


def _draw_ids(seed: int, made: Scenario) -> dict[str, Any]:
    """How often a query's transactional id changes, where it does: drivers with two new ids at once
    are rare, of a stream of its own."""
    rng = random.Random(f"{seed}/ids-scenario")
    often = made.id_change > 0 and rng.random() < 0.5
    return {"id_change": rng.uniform(0.3, 0.8)} if often else {}


def _draw_store(seed: int) -> dict[str, Any]:
    """How the checkpoint's store answers, of a stream of its own: at times it is slow, or fails."""
    rng = random.Random(f"{seed}/store-scenario")
    failure = rng.uniform(0.005, 0.05) if rng.random() < 0.3 else 0.0
    return {"store_failure": failure, "store_ms": rng.choice((20, 20, 20, 400))}


def _draw_tasks(seed: int) -> dict[str, Any]:
    """What happens to tasks and to a driver's clocks, of streams of their own."""
    rng = random.Random(f"{seed}/tasks-scenario")
    # Tasks that take no time are for half of the seeds: their drivers meet more often.
    share = rng.choice((0.0, 0.7))

    def some(low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < share else 0.0

    return {
        "tasks": rng.choice((1, 2, 4)),
        "task_failure": some(0.02, 0.3),
        "speculation": some(0.05, 0.5),
        "executor_loss": some(0.05, 0.3),
        "staging_files": rng.random() < 0.3,
        "inline_bytes": rng.choice((0, 0, 1_000)),
        "driver_clock": random.Random(f"{seed}/driver-clock-scenario").choice((0.0, 0.01, 0.05)),
    }


def draw_cluster(seed: int) -> Scenario:
    """The scenario `cluster`: what `random` draws of clients, and faults of three brokers."""
    rng = random.Random(f"{seed}/cluster-scenario")

    def some(low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < 0.6 else 0.0

    flushes_all = rng.random() < 0.5
    made = replace(
        draw_random(seed),
        name=THREE_BROKERS,
        description="three brokers, and faults of every kind, drawn from the seed",
        brokers=3,
        batches=rng.randint(2, 5),
        rows_per_batch=rng.choice((1, 5, 20)),
        source_partitions=rng.randint(1, 2),
        output_partitions=rng.randint(1, 3),
        driver_kill=some(0.005, 0.04),
        driver_pause=some(0.005, 0.03),
        broker_crash=some(0.0005, 0.01),
        connection_loss=some(0.0002, 0.005),
        spike=some(0.0002, 0.005),
        spike_ms=rng.choice((500, 4_000)),
        late=some(0.0005, 0.01),
        clock_jump=some(0.1, 0.5),
        registry_crash=some(0.001, 0.02),
        broker_pause=some(0.02, 0.15),
        partition=some(0.02, 0.15),
        clean_stop=some(0.02, 0.1),
        flushes_all=flushes_all,
        blackout=some(0.005, 0.05) if flushes_all else 0.0,
        small_segments=rng.random() < 0.5,
        compaction=rng.random() < 0.4,
        disk_full=some(0.02, 0.1),
        flush_failure=some(0.0002, 0.004),
        client_partition=some(0.01, 0.08),
        clog=some(0.01, 0.08),
        clock_drift=some(0.01, 0.1),
        disk_loss=some(0.005, 0.05),
        store_failure=some(0.005, 0.05),
        bit_flip=some(0.1, 0.6),
    )
    made = replace(made, **_draw_load(seed), duplicate=_draw_duplicate(seed))
    if made.flapping:
        return replace(made, chaos_ms=CHAOS_MS[-1], **_QUIET)
    made = replace(made, **_draw_unsafe(seed))
    # What takes long to happen is for some of the seeds: three short ones see more that differs.
    return replace(made, chaos_ms=random.Random(f"{seed}/cluster-length").choice(CHAOS_MS))


CHAOS_MS = (10_000, 20_000, 40_000)
"""How long faults go on in a cluster."""
_QUIET: Mapping[str, Any] = {
    "batches": 8,
    "broker_crash": 0.0,
    "broker_pause": 0.0,
    "partition": 0.0,
    "isolation": 0.0,
    "clean_stop": 0.0,
    "registry_crash": 0.0,
    "disk_full": 0.0,
    "flush_failure": 0.0,
    "client_partition": 0.0,
    "clog": 0.0,
    "clock_drift": 0.0,
    "disk_loss": 0.0,
    "bit_flip": 0.0,
}
"""Where brokers flap: for long, and while the same ones lead."""


def _draw_duplicate(seed: int) -> float:
    rng = random.Random(f"{seed}/cluster-twice")
    return rng.uniform(0.0005, 0.01) if rng.random() < 0.4 else 0.0


def _draw_unsafe(seed: int) -> dict[str, Any]:
    rng = random.Random(f"{seed}/cluster-unsafe")
    there = rng.random() < 0.12
    return {"unsafe_topic": there, "lonely_leader": there and rng.random() < 0.6}


def _draw_load(seed: int) -> dict[str, Any]:
    """What others do in a cluster: each kind in some of the seeds, as it takes its time."""
    rng = random.Random(f"{seed}/cluster-load")
    members = rng.choice((0, 0, 0, 2, 3))
    return {
        "members": members,
        "static_members": rng.choice((0, 0, 1, members)),
        "copiers": rng.random() < 0.5,
        "member_fault": rng.uniform(0.02, 0.15),
        "administrator": rng.random() < 0.4,
        "passing_topic": rng.random() < 0.3,
        "flapping": rng.random() < 0.15,
        "isolation": rng.uniform(0.02, 0.1) if rng.random() < 0.3 else 0.0,
    }


def load_scenario(name: str, seed: int) -> Scenario:
    """The scenario called `name`, or in the file `name`, for this seed. Raises ScenarioError."""
    if name in DRAWN:
        scenario = draw_random(seed) if name == RANDOM else draw_cluster(seed)
    else:
        path = Path(name) if name.endswith(".toml") else SCENARIO_DIRECTORY / f"{name}.toml"
        if not path.is_file():
            known = ", ".join((*DRAWN, *scenario_names()))
            raise ScenarioError(f"there is no scenario {name!r}; there are {known}")
        scenario = parse_scenario(path.stem, path.read_text(encoding="utf-8"))
    if scenario.transaction_version is None:
        version = random.Random(f"{seed}/transaction-version").choice((1, 2))
        scenario = replace(scenario, transaction_version=version)
    return scenario


def scenario_names() -> tuple[str, ...]:
    """The scenarios that have a file."""
    return tuple(sorted(path.stem for path in SCENARIO_DIRECTORY.glob("*.toml")))


def parse_scenario(name: str, text: str) -> Scenario:
    """The scenario in a file's text. Raises ScenarioError for what is not a field."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"scenario {name}: {error}") from error
    faults = tuple(_build(Fault, item, f"{name}: fault") for item in values.pop("fault", ()))
    expect = _build(Expect, values.pop("expect", {}), f"{name}: expect")
    values |= {"name": name, "faults": faults, "expect": expect}
    scenario: Scenario = _build(Scenario, values, name)
    return scenario


def _build(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    unknown = set(values) - {item.name for item in fields(kind)}
    if unknown:
        raise ScenarioError(f"scenario {where}: no field {', '.join(sorted(unknown))}")
    return kind(**values)
