"""The scenario of a run: in a file of `scenarios`, or drawn from the seed.

A scenario fixes what its file says; what it leaves open is drawn from the seed. So a crash after
PREPARE is one file, and it is still run under many network timings.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from simulation.scenario import ClusterChances, DiskChances, Fault, Scenario, ScenarioError

SCENARIO_DIRECTORY = Path(__file__).resolve().parent / "scenarios"
"""Part of the package: an installed one has the same scenarios as a checkout."""
RANDOM = "random"
"""The default scenario: faults of every kind, drawn from the seed."""
THREE_BROKERS = "cluster"
"""The same with three brokers, and what can happen to them."""
LOSSES = "losses"
"""`random` with what a checkpoint can lose, and with stateful queries, in every seed."""
DRAWN = (RANDOM, THREE_BROKERS, LOSSES)
CHAOS_MS = (10_000, 20_000, 40_000)
"""Milliseconds that faults go on in a cluster."""
MODERN_FROM = 10_000
"""Seeds from here on may have a consumer group of KIP-848; those below are known by what they do
with a classic one."""
Values = dict[str, Any]
"""By path, as in `Scenario.changed`."""


def load_scenario(name: str, seed: int) -> Scenario:
    """The scenario called `name`, or in the file `name`, for this seed. Raises ScenarioError."""
    if name in DRAWN:
        draw = {RANDOM: draw_random, THREE_BROKERS: draw_cluster, LOSSES: draw_losses}
        scenario = draw[name](seed)
    else:
        path = Path(name) if name.endswith(".toml") else SCENARIO_DIRECTORY / f"{name}.toml"
        if not path.is_file():
            known = ", ".join((*DRAWN, *scenario_names()))
            raise ScenarioError(f"there is no scenario {name!r}; there are {known}")
        scenario = parse_scenario(path.stem, path.read_text(encoding="utf-8"))
    if scenario.brokers.transaction_version is None:
        version = random.Random(f"{seed}/transaction-version").choice((1, 2))
        scenario = scenario.changed({"brokers.transaction_version": version})
    return scenario


def scenario_names() -> tuple[str, ...]:
    """The scenarios that have a file."""
    return tuple(sorted(path.stem for path in SCENARIO_DIRECTORY.glob("*.toml")))


def parse_scenario(name: str, text: str) -> Scenario:
    """The scenario in a file's text. Raises ScenarioError for what is not a field."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"scenario {name}: {error}") from error
    planned = tables.pop("planned", [])
    if not isinstance(planned, list):
        raise ScenarioError(f"scenario {name}: a planned fault is a table [[planned]]")
    values, default = dict(_by_path(tables, "")), Scenario()
    _check_known(name, values, default.values())
    for fault in planned:
        _check_known(f"{name}, [[planned]]", fault, {item.name for item in fields(Fault)})
    faults = tuple(Fault(**fault) for fault in planned)
    return default.changed(values | {"name": name, "planned": faults})


def _check_known(where: str, found: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(found) - set(known)):
        raise ScenarioError(f"scenario {where}: no field {', '.join(unknown)}")


def _by_path(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _by_path(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


# ---------------------------------------------------------------------- drawn from the seed


def _some(rng: random.Random, share: float, low: float, high: float) -> float:
    """A chance in this share of the seeds, else none."""
    return rng.uniform(low, high) if rng.random() < share else 0.0


def draw_random(seed: int) -> Scenario:
    """The scenario `random`: a swarm, each kind of fault on or off and of drawn strength."""
    rng = random.Random(f"{seed}/scenario")
    some, seldom = partial(_some, rng, 0.6), partial(_some, rng, 0.3)
    # With a lost checkpoint the transactional id has to stay: a new one has no record of the old.
    changes_id = rng.random() < 0.25
    drawn: Values = {
        "description": "faults of every kind, drawn from the seed",
        "query.batches": rng.randint(2, 8),
        "query.rows_per_batch": rng.choice((1, 5, 20, 60)),
        "query.source_partitions": rng.randint(1, 3),
        "query.output_partitions": rng.randint(1, 4),
        "query.empty_batches": 0.1,
        "query.transaction_timeout_ms": rng.choice((3_000, 15_000, 60_000)),
        "faults.broker.crash": some(0.0005, 0.02),
        "faults.broker.power_loss": rng.choice((0.0, 0.5, 1.0)),
        "faults.driver.kill": some(0.005, 0.08),
        "faults.driver.pause": some(0.005, 0.05),
        "faults.driver.power_loss": some(0.1, 0.5),
        "faults.worker.loss": some(0.1, 0.9),
        "faults.tasks.staged_read": some(0.005, 0.1),
        "faults.operator.checkpoint_lost": 0.0 if changes_id else some(0.05, 0.3),
        "faults.operator.tail_lost": 0.0 if changes_id else some(0.05, 0.3),
        "faults.operator.old_checkpoint": 0.0 if changes_id else some(0.05, 0.3),
        "faults.operator.id_change": rng.uniform(0.2, 0.6) if changes_id else 0.0,
        "faults.operator.second_query": rng.random() < 0.15,
        "faults.network.connection_loss": some(0.001, 0.03),
        "faults.network.spike": some(0.001, 0.03),
        "faults.broker.clock_jump": some(0.1, 0.5),
        "load.neighbours": rng.choice((0, 0, 0, 3)),
        "faults.disk.full": seldom(0.01, 0.05),
        "faults.disk.flush_failure": seldom(0.0005, 0.01),
    }
    # Drivers with two new ids at once are rare.
    ids = random.Random(f"{seed}/ids-scenario")
    if changes_id and ids.random() < 0.5:
        drawn["faults.operator.id_change"] = ids.uniform(0.3, 0.8)
    drawn |= _draw_tasks(seed) | _draw_drivers(seed) | _draw_outputs(seed)
    return Scenario(RANDOM).changed(drawn)


def draw_losses(seed: int) -> Scenario:
    """The scenario `losses`: `random`, with lost files of Spark's and stateful queries."""
    return draw_random(seed).changed({"name": LOSSES} | _draw_losses(seed))


def _draw_losses(seed: int) -> Values:
    """Draw losses of Spark's files from the checkpoint of a query with one output in one place.

    The query has state, has none, or its function leaves batches out while Spark purges its logs.
    """
    rng = random.Random(f"{seed}/losses-scenario")
    some = partial(_some, rng, 0.6)
    state = rng.choice(("", "windows", "timers"))
    leaves_out = not state and rng.random() < 0.4
    drawn: Values = {
        "query.state": state,
        "query.sinks": 1,
        "query.leaves_out": leaves_out,
        "query.retained_batches": rng.choice((0, 2, 3)),
        "query.reads_without_group": not leaves_out and rng.random() < 0.5,
        "faults.driver.unflushed_logs": some(0.2, 1.0),
        "faults.operator.logs_lost": some(0.05, 0.3),
        "faults.operator.backup_restored": some(0.05, 0.3),
        "faults.operator.id_change": 0.0,
        "faults.operator.copied": 0.0,
        "faults.operator.moved": 0.0,
        "faults.operator.topic_change": 0.0,
    }
    if leaves_out:
        # A batch that was left out, and lost, does not come again as it was.
        drawn |= {"faults.operator.logs_lost": 0.0, "faults.operator.backup_restored": 0.0}
        drawn |= {"faults.operator.tail_lost": 0.0, "query.empty_batches": rng.uniform(0.3, 0.8)}
        drawn |= {"faults.operator.checkpoint_lost": rng.uniform(0.1, 0.4)}
        drawn |= {"faults.operator.old_checkpoint": rng.uniform(0.1, 0.5)}
    return drawn


def _draw_outputs(seed: int) -> Values:
    """In some seeds a query has several outputs, or its checkpoint several places. Both need a
    checkpoint that is not lost, and one thing about an output that changes at a time."""
    rng = random.Random(f"{seed}/outputs-scenario")
    kept: Values = {
        "faults.operator.checkpoint_lost": 0.0,
        "faults.operator.tail_lost": 0.0,
        "faults.operator.old_checkpoint": 0.0,
        "faults.operator.id_change": 0.0,
    }
    kinds: tuple[Values, ...] = (
        kept | {"query.sinks": 2, "faults.worker.function_failure": 0.1},
        kept | {"faults.operator.copied": rng.uniform(0.01, 0.1)},
        {"faults.operator.id_change": 0.0, "faults.operator.moved": rng.uniform(0.2, 0.6)},
        kept | {"faults.operator.topic_change": rng.uniform(0.2, 0.6)},
    )
    drawn = dict(rng.choice(kinds)) if rng.random() < 0.3 else {}
    if rng.random() < 0.1:
        drawn |= {"query.leaves_out": True, "query.empty_batches": 0.4}
        drawn["faults.operator.tail_lost"] = 0.0
    if rng.random() < 0.1:
        drawn["faults.driver.pause_ms"] = 200_000
    return drawn


def _draw_drivers(seed: int) -> Values:
    """The clocks of a driver's machine; the store of the checkpoint, at times slow, or failing; and
    in some seeds a function given to foreachBatch that tries again: of streams of their own."""
    clocks, store, caller = (
        random.Random(f"{seed}/{name}-scenario") for name in ("driver-clock", "store", "caller")
    )
    drawn: Values = {
        "faults.driver.clock": clocks.choice((0.0, 0.01, 0.05)),
        "faults.driver.store_failure": _some(store, 0.3, 0.005, 0.05),
        "faults.driver.store_ms": store.choice((20, 20, 20, 400)),
    }
    if caller.random() < 0.15:
        drawn["faults.worker.kill"] = caller.uniform(0.005, 0.1)
        drawn["query.tries_again"] = caller.uniform(0.2, 0.9)
    return drawn


def _draw_tasks(seed: int) -> Values:
    """Draw what happens to tasks, from a stream of its own."""
    rng = random.Random(f"{seed}/tasks-scenario")
    # Tasks that take no time are for half of the seeds: their drivers meet more often.
    some = partial(_some, rng, rng.choice((0.0, 0.7)))
    return {
        "query.tasks": rng.choice((1, 2, 4)),
        "faults.tasks.failure": some(0.02, 0.3),
        "faults.tasks.speculation": some(0.05, 0.5),
        "faults.tasks.executor_loss": some(0.05, 0.3),
        "query.staging_files": rng.random() < 0.3,
        "query.inline_bytes": rng.choice((0, 0, 1_000)),
    }


def draw_cluster(seed: int) -> Scenario:
    """The scenario `cluster`: what `random` draws of clients, and faults of three brokers."""
    rng = random.Random(f"{seed}/cluster-scenario")
    some = partial(_some, rng, 0.6)
    flushes_all = rng.random() < 0.5
    drawn: Values = {
        "name": THREE_BROKERS,
        "description": "three brokers, and faults of every kind, drawn from the seed",
        "brokers.count": 3,
        "brokers.flushes_all": flushes_all,
        "query.batches": rng.randint(2, 5),
        "query.rows_per_batch": rng.choice((1, 5, 20)),
        "query.source_partitions": rng.randint(1, 2),
        "query.output_partitions": rng.randint(1, 3),
        "faults.driver.kill": some(0.005, 0.04),
        "faults.driver.pause": some(0.005, 0.03),
        "faults.broker.crash": some(0.0005, 0.01),
        "faults.network.connection_loss": some(0.0002, 0.005),
        "faults.network.spike": some(0.0002, 0.005),
        "faults.network.spike_ms": rng.choice((500, 4_000)),
        "faults.network.late": some(0.0005, 0.01),
        "faults.broker.clock_jump": some(0.1, 0.5),
        "faults.cluster.registry_crash": some(0.001, 0.02),
        "faults.cluster.pause": some(0.02, 0.15),
        "faults.cluster.partition": some(0.02, 0.15),
        "faults.cluster.clean_stop": some(0.02, 0.1),
        "faults.cluster.blackout": some(0.005, 0.05) if flushes_all else 0.0,
        "brokers.small_segments": rng.random() < 0.5,
        "brokers.compaction": rng.random() < 0.4,
        "faults.disk.full": some(0.02, 0.1),
        "faults.disk.flush_failure": some(0.0002, 0.004),
        "faults.cluster.client_partition": some(0.01, 0.08),
        "faults.cluster.clog": some(0.01, 0.08),
        "faults.cluster.clock_drift": some(0.01, 0.1),
        "faults.cluster.disk_loss": some(0.005, 0.05),
        "faults.driver.store_failure": some(0.005, 0.05),
        "faults.cluster.bit_flip": some(0.1, 0.6),
    }
    made = draw_random(seed).changed(drawn | _draw_load(seed))
    if made.faults.cluster.flapping:
        # For long, and while the same ones lead.
        quiet: Values = {
            "chaos_ms": CHAOS_MS[-1],
            "query.batches": 8,
            "faults.broker.crash": 0.0,
            "faults.cluster": ClusterChances(flapping=True, blackout=made.faults.cluster.blackout),
            "faults.disk": DiskChances(),
        }
        return made.changed(quiet)
    unsafe = random.Random(f"{seed}/cluster-unsafe")
    is_unsafe = unsafe.random() < 0.12
    # What takes long to happen is for some of the seeds: three short ones see more that differs.
    chaos_ms = random.Random(f"{seed}/cluster-length").choice(CHAOS_MS)
    return made.changed(
        {
            "chaos_ms": chaos_ms,
            "load.unsafe_topic": is_unsafe,
            "faults.cluster.lonely_leader": is_unsafe and unsafe.random() < 0.6,
        }
    )


def _draw_load(seed: int) -> Values:
    """Draw what others do in a cluster: each kind in some of the seeds, as it takes its time."""
    rng, twice = random.Random(f"{seed}/cluster-load"), random.Random(f"{seed}/cluster-twice")
    modern, members = random.Random(f"{seed}/cluster-modern"), rng.choice((0, 0, 0, 2, 3))
    return {
        "load.group.members": members,
        "load.group.static_members": rng.choice((0, 0, 1, members)),
        "load.group.copiers": rng.random() < 0.5,
        "load.group.modern": seed >= MODERN_FROM and modern.random() < 0.5,
        "load.group.member_fault": rng.uniform(0.02, 0.15),
        "load.administrator": rng.random() < 0.4,
        "load.passing_topic": rng.random() < 0.3,
        "faults.cluster.flapping": rng.random() < 0.15,
        "faults.cluster.isolation": _some(rng, 0.3, 0.02, 0.1),
        "faults.network.duplicate": _some(twice, 0.4, 0.0005, 0.01),
    }
