"""`python -m broker_sim start --brokers N`: a registry and N brokers, as processes of this one.

A broker that ends is missed by nobody but its clients: the others go on, as a cluster does. Without
the registry brokers go on until something has to change. A line on stderr says which has ended.
When this process ends, however it does, the others stop.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from broker_sim.client.fault import ClusterError
from broker_sim.core.config import ConfigError, ConfigValue
from broker_sim.core.endpoint import PORT_MAX
from broker_sim.local_cluster import REGISTRY, LocalCluster
from broker_sim.server.process import CannotStart
from txnlog_kafka.processes import has_ended, start_time

BROKERS_MAX = 100
_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)


def run(
    data_dir: Path,
    brokers: int,
    first_port: int,
    overrides: Mapping[str, str | ConfigValue],
    *,
    exit_with_pid: int | None,
) -> None:
    """Start all, print READY, stop all at SIGTERM or SIGINT, or when that process is gone.

    Broker k listens on `first_port` + k; 0 takes free ports. Raises ConfigError or CannotStart.
    """
    # Check the options before anything starts.
    if not 1 < brokers <= BROKERS_MAX:
        raise ConfigError(f"--brokers {brokers} is not between 1 and {BROKERS_MAX}")
    if first_port + brokers - 1 > PORT_MAX:
        raise ConfigError(f"--port {first_port} leaves no ports for {brokers} brokers")
    if "listeners" in overrides:
        raise ConfigError("listeners cannot be set with --brokers: each broker has its own port")
    ports = range(first_port, first_port + brokers) if first_port else ()
    try:
        config = {
            name: value if isinstance(value, bool | int) else str(value)
            for name, value in overrides.items()
        }
        cluster = LocalCluster(data_dir, brokers, config, ports)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    # Run until a signal, which Python raises as KeyboardInterrupt, or until no broker is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster.start()
        sys.stdout.write(f"READY bootstrap.servers={cluster.bootstrap_servers}\n")
        sys.stdout.flush()
        _watch(cluster, range(brokers), exit_with_pid)
    except ClusterError as error:
        raise CannotStart(str(error)) from error
    except KeyboardInterrupt:
        _log.info("stopping")
    finally:
        # A second signal must not leave brokers behind.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        cluster.stop()


def _watch(cluster: LocalCluster, brokers: range, pid: int | None) -> None:
    """Until that process is gone, or no broker is left."""
    started = None if pid is None else start_time(pid)
    running = {REGISTRY, *brokers}
    while running.intersection(brokers) and (pid is None or not has_ended(pid, started)):
        for broker_id in [each for each in running if not cluster.is_running(each)]:
            running.discard(broker_id)
            name = "registry" if broker_id == REGISTRY else f"broker-{broker_id}"
            _log.error("%s has ended; the reason is in %s.log", name, name)
        time.sleep(_POLL_SECONDS)
