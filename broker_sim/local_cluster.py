"""A cluster of broker processes on this machine, for tests, demos and notebooks."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from broker_sim.client.fault import ClusterError, Fault, delete_rules
from broker_sim.client.kafka import KafkaHelpers
from txnlog_kafka.wire.invariants import present

REGISTRY = -1
"""Stands for the registry where the number of a broker is asked for."""
READY = "READY bootstrap.servers="
REGISTRY_READY = "READY registry="
FAULTS_READY = "FAULTS "
Config = Mapping[str, str | int | bool]
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class LocalCluster(KafkaHelpers):
    """Broker processes on one data directory; use it as a context manager.

    `with LocalCluster(directory) as cluster:` starts them, `cluster.bootstrap_servers` is what
    clients need, and leaving the block stops them. The data stays. Several brokers have a registry,
    a process of its own that is started first and stopped last. Each process's stderr goes to
    `<data_dir>/broker-<id>.log` or `registry.log`. When this process dies all of them end by
    themselves within half a minute, unless a client is connected; other brokers are none. The
    methods of `KafkaHelpers` create topics, produce and read.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        brokers: int = 1,
        config: Config | None = None,
        ports: Sequence[int] = (),
        *,
        broker_configs: Sequence[Config] = (),
        faults: bool = False,
    ) -> None:
        """`config` has broker configurations by Kafka's names, `broker_configs` those of broker 0,
        1, ... alone, such as `broker.rack`; with `listeners`, the first of them is the one that
        `bootstrap_servers` names. Each broker takes a free port where `ports` has none for it.
        With `faults` the brokers fail as `fault` says. Nothing is started yet."""
        if brokers < 1 or max(len(ports), len(broker_configs)) > brokers:
            raise ValueError(f"brokers={brokers} with {len(ports)} ports and {len(broker_configs)} "
                             "broker_configs: there is one broker at least, and each of those is "
                             "of one broker")  # fmt: skip
        for name in ("node.id", "registry.connect") if brokers > 1 else ():
            if name in (config or {}):
                raise ValueError(f"{name} is set for each of {brokers} brokers, not for all")
        self.data_dir = Path(data_dir)
        own = [*broker_configs, *[{}] * (brokers - len(broker_configs))]
        self._configs = [{**(config or {}), **each} for each in own]
        self._ports = {each: ports[each] if each < len(ports) else 0 for each in range(brokers)}
        self.registry_port = 0
        """Port of the registry of several brokers; it stays the same. 0 before the start."""
        self._faults: dict[int, str] | None = {} if faults else None
        """Address for rules of faults by broker, if there may be any."""
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._held: dict[int, socket.socket] = {}

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of each broker, separated by commas; ports survive restarts."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self, broker_id: int | None = None) -> None:
        """Start this broker, or every one, that does not run; returns when all are ready. The
        registry is started with any of them."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if broker_id not in (None, REGISTRY, *self._ports):
            raise ClusterError(f"there is no broker {broker_id}: brokers are {[*self._ports]}")
        wanted = self._ports if broker_id is None else {broker_id} - {REGISTRY}
        started = [each for each in wanted if not self.is_running(each)]
        try:
            self._start_registry()
            for each in started:
                self._launch(each)
            for each in started:
                process = self._processes[each]
                self._ports[each] = self._await_ready(process, READY, _name(each))
                if self._faults is not None:
                    output = present(process.stdout, "the process was started with a pipe")
                    line = output.readline().strip()  # it was written with the line before it
                    self._faults[each] = line.removeprefix(FAULTS_READY)
        except BaseException:
            for each in started:
                if each in self._processes:
                    self.kill(each)
            raise

    def stop(self, broker_id: int | None = None) -> None:
        """Stop this broker cleanly (SIGTERM), or every running one, one after the other, and then
        the registry."""
        brokers = sorted(self._processes, reverse=True) if broker_id is None else [broker_id]
        for each in brokers:
            _terminate(self._taken(each))
        while broker_id is None and self._held:
            self._held.popitem()[1].close()

    def kill(self, broker_id: int = 0) -> None:
        """SIGKILL a broker, or the REGISTRY, and wait until it is gone."""
        _kill(self._taken(broker_id))

    def pause(self, broker_id: int = 0) -> None:
        """SIGSTOP a broker, or the REGISTRY: it keeps its connections and does nothing."""
        self._process(broker_id).send_signal(signal.SIGSTOP)

    def resume(self, broker_id: int = 0) -> None:
        """Let a paused one go on."""
        self._process(broker_id).send_signal(signal.SIGCONT)

    def restart(self, broker_id: int = 0) -> None:
        """Start a killed one, or stop a running one cleanly before: same port, same data."""
        if self.is_running(broker_id):
            self.stop(broker_id)
        self.start(broker_id)

    def fault(self, api: str, *, broker_id: int | None = None, **rule: Any) -> Fault:
        """Let brokers fail at a request of clients, such as `fault("EndTxn", on_call=2,
        drop_response=True)`; docs/broker/testing.md has the fields.

        `broker_id` None stands for all that run. A broker that is started again has no rules.
        Raises ValueError for a rule that cannot be, ClusterError without LocalCluster(faults=True)
        and for a broker that does not run.
        """
        if self._faults is None:
            raise ClusterError("no fault was asked for: use LocalCluster(..., faults=True)")
        running = {each: at for each, at in self._faults.items() if self.is_running(each)}
        if not running or broker_id not in (None, *running):
            asked = "no broker runs" if broker_id is None else f"broker {broker_id} does not run"
            raise ClusterError(f"{asked}: a rule is made in a running broker, and ends with it")
        at = running.values() if broker_id is None else [running[broker_id]]
        return Fault.made([*at], {"api": api, **rule})

    def clear_faults(self) -> None:
        """Remove all rules from all brokers that run."""
        for each, address in (self._faults or {}).items():
            if self.is_running(each):
                delete_rules(address)

    def is_running(self, broker_id: int = 0) -> bool:
        """True if the process lives."""
        process = self._processes.get(broker_id)
        return process is not None and process.poll() is None

    def pid(self, broker_id: int = 0) -> int:
        """The process id of a running one."""
        return self._process(broker_id).pid

    def broker_dir(self, broker_id: int = 0) -> Path:
        """The folder with the broker's partitions."""
        return self.data_dir / f"broker-{broker_id}"

    # ------------------------------------------------------------------ processes

    def _process(self, broker_id: int) -> subprocess.Popen[str]:
        """Return the process of a started broker or registry. Raises ClusterError for any other."""
        if broker_id not in self._processes:
            started = [_name(each) for each in sorted(self._processes)]
            raise ClusterError(f"{_name(broker_id)} was not started; started are {started}")
        return self._processes[broker_id]

    def _taken(self, broker_id: int) -> subprocess.Popen[str]:
        """The same, which from now on does not count as started."""
        process = self._process(broker_id)
        del self._processes[broker_id]
        return process

    def _start_registry(self) -> None:
        """Start the registry of several brokers, unless it runs; it keeps its port."""
        if len(self._ports) == 1 or self.is_running(REGISTRY):
            return
        self.registry_port = self._hold(REGISTRY, self.registry_port)
        self._run(REGISTRY, ["registry", "--port", str(self.registry_port)])
        process = self._processes[REGISTRY]
        self.registry_port = self._await_ready(process, REGISTRY_READY, "registry")

    def _launch(self, broker_id: int) -> None:
        arguments = ["start", "--config", str(self._write_config(broker_id))]
        if "listeners" not in self._configs[broker_id]:
            self._ports[broker_id] = self._hold(broker_id, self._ports[broker_id])
            arguments += ["--port", str(self._ports[broker_id])]
        if self._faults is not None:
            arguments += ["--fault-port", "0"]
        self._run(broker_id, arguments)

    def _hold(self, broker_id: int, port: int) -> int:
        """The port, a free one for 0, which nobody else gets while the broker is down.

        A socket that is bound and does not listen keeps it, beside the broker's own. Where it
        cannot be bound the broker says that it is in use.
        """
        if broker_id in self._held:
            return port
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            return port
        self._held[broker_id] = held
        return int(held.getsockname()[1])

    def _run(self, broker_id: int, arguments: Sequence[str]) -> None:
        left = self._processes.pop(broker_id, None)
        if left is not None:
            _kill(left)
        self._processes[broker_id] = self._spawn(_name(broker_id), arguments)

    def _spawn(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "broker_sim", *arguments,
            "--data-dir", str(self.data_dir),
            "--exit-with-pid", str(os.getpid()),
        ]  # fmt: skip
        package_parent = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(p for p in (package_parent, os.environ.get("PYTHONPATH")) if p)
        with self._log_path(name).open("a") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C is for this process, which stops them in their order.
                process_group=None if len(self._ports) == 1 else 0,
            )

    def _write_config(self, broker_id: int) -> Path:
        """A file for this user alone: it may have passwords, which no command line may show."""
        import javaproperties  # it loads HTTP and XML: not for each `import broker_sim`

        path = self.data_dir / f"broker-{broker_id}.properties"
        values = {"node.id": str(broker_id)}
        if REGISTRY in self._processes:
            values["registry.connect"] = f"127.0.0.1:{self.registry_port}"
        for name, value in self._configs[broker_id].items():
            values[name] = str(value).lower() if isinstance(value, bool) else str(value)
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text(javaproperties.dumps(values, timestamp=False), encoding="utf-8")
        return path

    def _await_ready(self, process: subprocess.Popen[str], ready: str, name: str) -> int:
        """The port that the process says it is ready on."""
        deadline = time.monotonic() + START_SECONDS_MAX
        output = present(process.stdout, "the process was started with a pipe")
        while time.monotonic() < deadline:
            readable, _, _ = select.select([output], [], [], 0.2)
            line = output.readline() if readable else ""
            if line.startswith(ready):
                return int(line.strip().rpartition(":")[2])
            if readable and not line:
                break
        process.kill()
        process.wait()
        what = name.replace("-", " ")
        raise ClusterError(f"{what} did not start: {self._log_tail(name)}")

    def _log_path(self, name: str) -> Path:
        return self.data_dir / f"{name}.log"

    def _log_tail(self, name: str) -> str:
        text = self._log_path(name).read_text(errors="replace")
        return text[-2000:].strip() or "it printed nothing"


def _name(broker_id: int) -> str:
    return "registry" if broker_id == REGISTRY else f"broker-{broker_id}"


def _terminate(process: subprocess.Popen[str]) -> None:
    """SIGTERM, also to one that is paused; SIGKILL when it does not end."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _close(process)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    _close(process)


def _close(process: subprocess.Popen[str]) -> None:
    if process.stdout is not None:
        process.stdout.close()
