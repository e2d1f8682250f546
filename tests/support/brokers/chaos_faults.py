"""Draw the faults of a cluster and a driver from a seed: each fault begins and ends.

Each broker, the registry and the driver have one fault at a time, so that the end of one fault does
not end another.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from support.brokers.chaos_cluster import ChaosCluster
from support.brokers.network import Way
from support.brokers.sim_broker import NODES
from support.spark.spark_copy import RunningJob, descendants

from broker_sim import REGISTRY

BEGIN_SECONDS_MAX = 6.0
LAST_SECONDS_MAX = 12.0
"""Sessions with the registry are over after half of it."""
FAULTS_MAX = 3
_NAMES = {REGISTRY: "registry"}


@dataclass(frozen=True)
class Fault:
    """`begin` at `begins` seconds from the start of the round, `end` at `ends`."""

    text: str
    begins: float
    ends: float
    begin: Callable[[], None]
    end: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.text} {self.begins:.1f}-{self.ends:.1f} s"


class Faults:
    def __init__(
        self, cluster: ChaosCluster, job: Callable[[], RunningJob], rng: random.Random
    ) -> None:
        """`job` gives the run of the driver that there is at a time."""
        self._cluster = cluster
        self._job = job
        self._rng = rng

    def draw(self) -> list[Fault]:
        """Between one and three, by their beginning."""
        rng = self._rng
        if rng.random() < 0.08:
            brokers = [self._of_all()]
        elif rng.random() < 0.12:
            # A lost disk is made good by the others: all of them have to be there.
            brokers = [self._lost_disk(rng.randrange(NODES))]
        else:
            victims = rng.sample([REGISTRY, *range(NODES)], rng.randint(1, FAULTS_MAX - 1))
            brokers = [rng.choice(self._of_one(victim))(victim) for victim in victims]
        if rng.random() < 0.5:
            brokers.append(rng.choice([self._killed_driver, self._paused_driver, self._worker])())
        return sorted(brokers, key=lambda fault: fault.begins)

    def _of_one(self, victim: int) -> list[Callable[[int], Fault]]:
        both = [self._killed, self._paused, self._cut_off, self._half_cut_off, self._reset]
        return both if victim == REGISTRY else [*both, self._stopped, self._without_registry]

    def _made(self, text: str, begin: Callable[[], None], end: Callable[[], None]) -> Fault:
        begins = self._rng.uniform(0.0, BEGIN_SECONDS_MAX)
        return Fault(text, begins, begins + self._rng.uniform(0.2, LAST_SECONDS_MAX), begin, end)

    # ------------------------------------------------------------------ processes

    def _killed(self, victim: int) -> Fault:
        cluster = self._cluster.cluster
        return self._made(
            f"kill {_name(victim)}",
            lambda: cluster.kill(victim),
            lambda: self._cluster.start_one(victim),
        )

    def _paused(self, victim: int) -> Fault:
        cluster = self._cluster
        return self._made(
            f"pause {_name(victim)}", lambda: cluster.pause(victim), lambda: cluster.resume(victim)
        )

    def _stopped(self, victim: int) -> Fault:
        """A clean stop and start, as in a rolling restart."""
        cluster = self._cluster
        return self._made(
            f"stop {_name(victim)}",
            lambda: cluster.stop_one(victim),
            lambda: cluster.start_one(victim),
        )

    def _lost_disk(self, victim: int) -> Fault:
        cluster = self._cluster
        return self._made(
            f"lose the disk of {_name(victim)}",
            lambda: cluster.lose_disk(victim),
            lambda: cluster.start_one(victim),
        )

    def _of_all(self) -> Fault:
        cluster = self._cluster.cluster

        def kill() -> None:
            for each in (REGISTRY, *range(NODES)):
                cluster.kill(each)

        return self._made("kill everything", kill, cluster.start)

    # ------------------------------------------------------------------ the network

    def _cut(self, what: str, ways: list[Way]) -> Fault:
        network = self._cluster.network
        return self._made(f"cut {what}", lambda: network.cut(ways), lambda: network.heal(ways))

    def _cut_off(self, victim: int) -> Fault:
        return self._cut(f"off {_name(victim)}", self._cluster.ways_of(victim))

    def _half_cut_off(self, victim: int) -> Fault:
        """Cut two ways to or from the broker, drawn: some processes hear it, others do not."""
        ways = self._rng.sample(self._cluster.ways_of(victim), 2)
        return self._cut(", ".join(f"{_name(one)} to {_name(other)}" for one, other in ways), ways)

    def _without_registry(self, victim: int) -> Fault:
        """Cut a broker from the registry: other brokers still reach it, and its session expires."""
        ways = [(victim, REGISTRY), (REGISTRY, victim)]
        return self._cut(f"{_name(victim)} from the registry", ways)

    def _reset(self, victim: int) -> Fault:
        network, ways = self._cluster.network, self._cluster.ways_of(victim)
        return self._made(f"reset connections of {_name(victim)}", lambda: network.reset(ways),
                          lambda: network.reset(ways))  # fmt: skip

    # ------------------------------------------------------------------ the driver

    def _killed_driver(self) -> Fault:
        return self._made("kill driver", lambda: self._job().kill(), _nothing)

    def _paused_driver(self) -> Fault:
        pids: list[int] = []

        def pause() -> None:
            pids.extend(descendants(self._job().process.pid))
            _signal(pids, signal.SIGSTOP)

        return self._made("pause driver", pause, lambda: _signal(pids, signal.SIGCONT))

    def _worker(self) -> Fault:
        """Kill one of the Python processes below the driver: a task's, a planner's, or the
        daemon."""

        def kill() -> None:
            below = descendants(self._job().process.pid)[1:]
            if below:
                _signal([self._rng.choice(below)], signal.SIGKILL)

        return self._made("kill a Python worker", kill, _nothing)


def _name(number: int) -> str:
    return _NAMES.get(number, f"broker {number}")


def _nothing() -> None:
    """The fault is over when it has begun."""


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
