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
from functools import partial

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
            victim, cluster = rng.randrange(NODES), self._cluster
            lose, start = partial(cluster.lose_disk, victim), partial(cluster.start_one, victim)
            brokers = [self._made(f"lose the disk of {_name(victim)}", lose, start)]
        else:
            victims = rng.sample([REGISTRY, *range(NODES)], rng.randint(1, FAULTS_MAX - 1))
            brokers = [self._of_one(victim) for victim in victims]
        if rng.random() < 0.5:
            brokers.append(rng.choice([self._killed_driver, self._paused_driver, self._worker])())
        return sorted(brokers, key=lambda fault: fault.begins)

    def _made(self, text: str, begin: Callable[[], None], end: Callable[[], None]) -> Fault:
        begins = self._rng.uniform(0.0, BEGIN_SECONDS_MAX)
        return Fault(text, begins, begins + self._rng.uniform(0.2, LAST_SECONDS_MAX), begin, end)

    def _of_one(self, victim: int) -> Fault:
        """Draw a fault of one broker, or of the registry."""
        cluster, network, name = self._cluster, self._cluster.network, _name(victim)
        ways = cluster.ways_of(victim)
        start, resume = partial(cluster.start_one, victim), partial(cluster.resume, victim)
        reset = partial(network.reset, ways)
        kinds = [
            lambda: self._made(f"kill {name}", partial(cluster.cluster.kill, victim), start),
            lambda: self._made(f"pause {name}", partial(cluster.pause, victim), resume),
            lambda: self._cut(f"off {name}", ways),
            lambda: self._half_cut_off(ways),
            lambda: self._made(f"reset connections of {name}", reset, reset),
        ]
        if victim != REGISTRY:
            # A clean stop and start, as in a rolling restart. Cut off from the registry, a broker
            # is still reached by other brokers, and its session expires.
            of_registry = [(victim, REGISTRY), (REGISTRY, victim)]
            kinds += [
                lambda: self._made(f"stop {name}", partial(cluster.stop_one, victim), start),
                lambda: self._cut(f"{name} from the registry", of_registry),
            ]
        return self._rng.choice(kinds)()

    def _cut(self, what: str, ways: list[Way]) -> Fault:
        network = self._cluster.network
        return self._made(f"cut {what}", partial(network.cut, ways), partial(network.heal, ways))

    def _half_cut_off(self, ways: list[Way]) -> Fault:
        """Cut two ways to or from the broker, drawn: some processes hear it, others do not."""
        ways = self._rng.sample(ways, 2)
        return self._cut(", ".join(f"{_name(one)} to {_name(other)}" for one, other in ways), ways)

    def _of_all(self) -> Fault:
        cluster = self._cluster.cluster

        def kill() -> None:
            for each in (REGISTRY, *range(NODES)):
                cluster.kill(each)

        return self._made("kill everything", kill, cluster.start)

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
