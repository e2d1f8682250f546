"""Three brokers and their registry, with a network between them that can be cut."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.brokers.cluster_roles import is_whole
from support.brokers.network import Network, Way
from support.brokers.probe import free_ports, wait_until
from support.brokers.sim_broker import NODES, SimBroker

from broker_sim import REGISTRY

HEALED_SECONDS_MAX = 120.0
SHORT = {
    # What takes its time in a cluster is seen within a round.
    "replica.lag.time.max.ms": "4000",
    "replica.socket.timeout.ms": "5000",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


class ChaosCluster(SimBroker):
    """Clients connect directly, brokers to each other and the registry by doors of the network."""

    def __init__(self, folder: Path) -> None:
        self.network = Network()
        self._paused: set[int] = set()
        inner, outer = free_ports(NODES), free_ports(NODES)
        registry = self.network.door(REGISTRY, lambda: self.cluster.registry_port)
        own = []
        for number, port in enumerate(outer):
            door = self.network.door(number, lambda number=number: inner[number])
            clients = f"CLIENTS://127.0.0.1:{port}"
            own.append(
                {
                    "listeners": f"{clients},BROKERS://127.0.0.1:{inner[number]}",
                    "advertised.listeners": f"{clients},BROKERS://127.0.0.1:{door}",
                    "registry.connect": f"127.0.0.1:{registry}",
                }
            )
        super().__init__(folder, SHORT, brokers=NODES, own=own, ports=outer)

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.heal()
            self.stop()
        finally:
            self.network.close()

    def start_one(self, number: int) -> None:
        """Start one that is down. A broker needs the registry for that: where it cannot be reached
        now, `heal` will start it."""
        cut = self.network.cut_ways
        reachable = self.cluster.is_running(REGISTRY) and REGISTRY not in self._paused
        if number == REGISTRY or (reachable and not any(REGISTRY in way for way in cut)):
            self.cluster.start(number)

    def pause(self, number: int) -> None:
        self._paused.add(number)
        self.cluster.pause(number)

    def resume(self, number: int) -> None:
        self._paused.discard(number)
        self.cluster.resume(number)

    def lose_disk(self, number: int) -> None:
        """SIGKILL, and nothing is left of its files."""
        self.kill(number)
        shutil.rmtree(self.cluster.broker_dir(number))

    def ways_of(self, number: int) -> list[Way]:
        """Return the ways from and to every other process, the registry among them."""
        others = [each for each in (REGISTRY, *range(NODES)) if each != number]
        return [way for each in others for way in ((number, each), (each, number))]

    def heal(self) -> None:
        """Let every process run, and let all of them reach each other."""
        self.network.heal()
        for number in (REGISTRY, *range(NODES)):
            if self.cluster.is_running(number):
                self.resume(number)
        self.cluster.start()

    def wait_whole(self) -> None:
        """Return when all replicas of everything are in sync, as every broker knows."""
        wait_until(
            lambda: is_whole(self.ports), "all replicas in sync", timeout_s=HEALED_SECONDS_MAX
        )

    def logs_of(self, topic: str, partition: int) -> list[bytes]:
        """Return the bytes that each broker has of a partition on disk, across its segments."""
        found = []
        for number in range(NODES):
            folder = self.cluster.broker_dir(number) / f"{topic}-{partition}"
            found.append(b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))))
        return found
