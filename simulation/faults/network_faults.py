"""Faults of the network of a cluster, drawn from the seed.

Processes of the cluster may not hear each other, or clients and brokers, both ways or one way.
Links may be clogged: link after link stops to deliver. When it delivers once more, it gives all
that it has held back, in another order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from simulation.hosts.network import Direction, Network
from simulation.hosts.scheduler import Scheduler
from simulation.trace import Trace

PARTITION_US = (100_000, 10_000_000)
CLOG_START_US = (0, 1_000_000)
CLOG_US = (100_000, 6_000_000)
CLOGGED_LINKS_MAX = 6


class NetworkFaults:
    """See the module. `names` are those of the cluster's processes."""

    def __init__(
        self, network: Network, scheduler: Scheduler, trace: Trace, names: Sequence[str]
    ) -> None:
        self._network = network
        self._scheduler = scheduler
        self._trace = trace
        self._names = names
        self._cut_off: list[tuple[Direction, ...]] = []
        self._clogs = 0
        """Count of clogs that have begun, or are about to."""

    @property
    def is_whole(self) -> bool:
        """True if all processes of the cluster hear each other."""
        return not self._cut_off and not self._clogs

    def begin(self) -> None:
        """Clients are those that connect from now on."""
        self._network.machines.clear()

    def end(self) -> None:
        """End the faults: all held-back messages arrive."""
        for directions in self._cut_off:
            self._network.open_again(*directions)
        self._cut_off.clear()
        self._network.unclog_all()

    def part(self, rng: random.Random) -> None:
        """Part a process from all others, or two from each other, both ways or one way."""
        one = rng.choice(self._names)
        others = [name for name in self._names if name != one]
        if rng.random() < 0.5:
            others = [rng.choice(others)]
        self._part_by_chance(rng, "partition", one, others)

    def isolate(self, one: str, for_us: int) -> None:
        """Part a process from all others, both ways; clients still reach it."""
        self._part("partition", one, [name for name in self._names if name != one], "both", for_us)

    def part_client(self, rng: random.Random) -> None:
        """A client from one broker, or from all of them."""
        clients = [name for name in self._network.machines if name not in self._names]
        if not clients:
            return
        brokers = [name for name in self._names if name.startswith("broker-")]
        if rng.random() < 0.6:
            brokers = [rng.choice(brokers)]
        self._part_by_chance(rng, "client partition", rng.choice(clients), brokers)

    def _part_by_chance(
        self, rng: random.Random, what: str, one: str, others: Sequence[str]
    ) -> None:
        kind = rng.choice(("both", "both", "from", "to"))
        self._part(what, one, others, kind, rng.randint(*PARTITION_US))

    def _part(self, what: str, one: str, others: Sequence[str], kind: str, for_us: int) -> None:
        """`kind` is both, from or to."""
        out = [(one, other) for other in others] if kind != "to" else []
        back = [(other, one) for other in others] if kind != "from" else []
        directions = (*out, *back)
        text = f"{what} {'both ways' if kind == 'both' else 'one way'}"
        for victim in [one] if one in self._names else others:
            self._trace.fault(text, victim)
        self._trace.line("network", "parted", {"directions": directions})
        self._network.cut_off(*directions)
        self._cut_off.append(directions)
        self._scheduler.after(for_us, partial(self._join, directions))

    def _join(self, directions: tuple[Direction, ...]) -> None:
        if directions in self._cut_off:
            self._trace.line("network", "joined", {"directions": directions})
            self._cut_off.remove(directions)
            still = {each for parted in self._cut_off for each in parted}
            self._network.open_again(*(set(directions) - still))

    def clog(self, rng: random.Random, goes_on: Callable[[], bool]) -> None:
        """Some links, each for a while of its own."""
        clients = [name for name in self._network.machines if name not in self._names]
        links = [(a, b) for a in self._names for b in self._names if a != b]
        links += [(client, name) for client in clients for name in self._names]
        links += [(name, client) for client in clients for name in self._names]
        for link in rng.sample(links, rng.randint(1, CLOGGED_LINKS_MAX)):
            begins_us, for_us = rng.randint(*CLOG_START_US), rng.randint(*CLOG_US)
            self._clogs += 1
            self._scheduler.after(begins_us, partial(self._clog, link, goes_on))
            self._scheduler.after(begins_us + for_us, partial(self._unclog, link))

    def _clog(self, link: Direction, goes_on: Callable[[], bool]) -> None:
        if goes_on():
            for victim in link:
                if victim in self._names:
                    self._trace.fault("clogged link", victim)
            self._trace.line("network", "clogged", {"link": link})
            self._network.clog(link)

    def _unclog(self, link: Direction) -> None:
        self._clogs -= 1
        self._network.unclog(link)
