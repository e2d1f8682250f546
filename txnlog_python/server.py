"""Server: imports once, and forks for each client.

`python -m txnlog_python.server SOCKET JVM` has the environment and the folder of the client that
starts it, so it finds the modules that a fresh interpreter would find there. It writes READY to its
standard output when it listens, or the reason why it cannot serve.

The server ends when the JVM and the last forked process have ended. A forked process is killed with
its client (only SIGKILL ends a client first), and with the server. All run as this user.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import selectors
import signal
import socket
import sys
import threading
import zipimport
from pathlib import Path
from typing import Any

from txnlog_python.bytecode import KEPT_PREFIX, kept_bytecode
from txnlog_python.command import IMPORTS_VARIABLE, NUMBER_BYTES, READY, started_at
from txnlog_python.forked import Request, become

SPARKS = (
    "pyspark.daemon",
    "pyspark.worker",
    *(
        f"pyspark.sql.worker.{name}"
        for name in (
            "commit_data_source_write",
            "create_data_source",
            "data_source_pushdown_filters",
            "lookup_data_sources",
            "plan_data_source_read",
            "python_streaming_sink_runner",
            "write_into_data_source",
        )
    ),
    "pyspark.sql.streaming.python_streaming_source_runner",
)
"""Modules of PySpark with which its JVM starts Python."""
OURS = tuple(
    f"txnlog_spark.{name}"
    for name in ("datasource", "source.batch", "source.stream", "sink.task", "sink.writers")
)
WITH_THREADS = ("numpy", "pyarrow")
"""Libraries whose threads end at a fork, and start after it (`pthread_atfork`)."""
LATER = ("pyarrow.compute", "pandas")
"""Modules that tasks need and planning does not: Arrow imports pandas for its first array. The
server imports them when it has had nothing to do for IDLE_S."""
IDLE_S = 0.3
REQUEST_TIMEOUT_S = 10.0
REQUEST_BYTES_MAX = 1 << 24


class CannotFork(Exception):
    """Set of modules whose process must not be forked."""


def import_all() -> None:
    """Import the modules to keep warm. Raises CannotFork, which names the module, and OSError."""
    given = os.environ.get(IMPORTS_VARIABLE, "")
    if os.path.sep in given:
        given = Path(given).read_text(encoding="utf-8")
    lines = (line.partition("#")[0] for line in given.splitlines())
    wanted = [name.strip() for line in lines for name in line.split(",") if name.strip()]
    known = [name for name in WITH_THREADS if _is_installed(name)]
    others = [name for name in (*SPARKS, *OURS) if _is_installed(name)]
    for name in (*known, *others, *wanted):
        threads, sockets = _thread_count(), _socket_count()
        try:
            importlib.import_module(name)
        except Exception as error:
            raise CannotFork(f"import {name}: {type(error).__name__}: {error}") from error
        if threading.active_count() > 1 or (name not in known and _thread_count() > threads):
            raise CannotFork(f"the module {name} starts threads, which a forked process lacks")
        if _socket_count() > sockets:
            raise CannotFork(f"the module {name} opens connections, which processes cannot share")

    forget_parts_of_archives()


def import_and_freeze(name: str) -> None:
    """Import one module more. If it fails, it fails again in the process that needs it."""
    with contextlib.suppress(Exception):
        importlib.import_module(name)
    freeze()


def freeze() -> None:
    """Keep garbage collections from writing to the pages that forked processes share."""
    gc.collect()
    gc.freeze()


def forget_parts_of_archives() -> None:
    """Forget the importers of packages inside an archive; an import makes them again.

    Spark's workers call `importlib.invalidate_caches`, by which each importer reads the archive's
    directory again. There is one for each package of PySpark that was imported out of its archive:
    together they take a worker 0.1 s and 19 MiB.
    """
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimport.zipimporter) and importer.prefix:
            del sys.path_importer_cache[path]


def _is_installed(name: str) -> bool:
    """True if the module exists: an older PySpark has fewer modules."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _thread_count() -> int:
    return len([*Path("/proc/self/task").iterdir()])


def _socket_count() -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the list itself
            count += str(descriptor.readlink()).startswith("socket:")
    return count


class Server:
    """Forks for clients, and reports to each how its process has ended."""

    def __init__(self, listener: socket.socket, jvm: int) -> None:
        """`jvm` is a process descriptor (`pidfd_open`)."""
        self._listener = listener
        self._jvm = jvm
        self._clients: dict[int, socket.socket] = {}
        """Connections by the process id of their forked processes."""
        self._wakes, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, Any] = {}
        self._is_open = False
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._later = [name for name in LATER if _is_installed(name)]

    def serve(self) -> Request | None:
        """Serve until the JVM and all forked processes have ended; a forked process returns."""
        signal.set_wakeup_fd(self._woken)
        self._handlers = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
        for number in (signal.SIGINT, signal.SIGHUP):  # of the terminal: for the application
            self._handlers[number] = signal.signal(number, signal.SIG_IGN)
        for source in (self._listener, self._jvm, self._wakes):
            self._selector.register(source, selectors.EVENT_READ)
        self._is_open = True
        while self._is_open or self._clients:
            events = self._selector.select(IDLE_S if self._later else None)
            if not events and self._later:
                import_and_freeze(self._later.pop(0))
            for key, _ in events:
                if key.fileobj is not self._listener:
                    self._handle(key)
                elif (request := self._accept()) is not None:
                    return request
        return None

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.fileobj == self._wakes:
            os.read(self._wakes, 4096)
            self._report_ends()
        elif key.fileobj == self._jvm:
            self._is_open = False
            for source in (self._listener, self._jvm):
                self._selector.unregister(source)
            self._listener.close()
        else:
            self._lose(key.data, key.fileobj)

    def _accept(self) -> Request | None:
        """Fork for a client. Return its request in the forked process."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # The JVM ended in the same round of events, which closed the listener; or the client
            # was killed before, or there are too many: then it is accepted later.
            return None
        try:
            connection.settimeout(REQUEST_TIMEOUT_S)
            request = Request.receive(connection, REQUEST_BYTES_MAX)
        except (OSError, ValueError):
            connection.close()  # its client was killed
            return None
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            pid = -1  # the client starts a fresh Python
        if pid == 0:
            self._leave(server, connection)
            return request
        request.close_streams()
        if pid < 0:
            connection.close()
            return None
        self._clients[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, pid)
        return None

    def _leave(self, server: int, connection: socket.socket) -> None:
        """Close the server's descriptors in a forked process; send the client its process id.

        The process itself sends it, before it runs anything: a client without it starts a fresh
        Python, which would run the same a second time.
        """
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._selector.close()
        for each in (self._listener, *self._clients.values()):
            each.close()
        for descriptor in (self._jvm, self._wakes, self._woken):
            os.close(descriptor)
        self._prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: with the server
        if os.getppid() != server:
            os.kill(os.getpid(), signal.SIGKILL)
        _send_number(connection, os.getpid())
        connection.close()

    def _report_ends(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # The last forked process has ended, and its client has the report.
                return
            if not pid:
                return
            connection = self._clients.pop(pid, None)
            if connection is not None:
                self._selector.unregister(connection)
                _send_number(connection, status)
                connection.close()

    def _lose(self, pid: int, lost: object) -> None:
        """End the process of a client that was killed."""
        connection = self._clients.get(pid)
        if connection is None or connection is not lost:
            # The process ended before its client: the same round of events has reported that.
            return
        self._selector.unregister(connection)
        os.kill(pid, signal.SIGKILL)
        self._clients.pop(pid).close()


def _send_number(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # its client was killed: `_lose` comes next
        connection.sendall(number.to_bytes(NUMBER_BYTES, "big"))


def sweep(folder: Path) -> None:
    """Remove the files that killed servers left in the folder, if their applications have ended."""
    for path in folder.iterdir():
        if path.name.startswith(KEPT_PREFIX):
            continue
        pid, when, *_ = path.name.split("-")
        with contextlib.suppress(FileNotFoundError):  # another one sweeps as well
            try:
                is_alive = started_at(int(pid)) == when
            except FileNotFoundError:
                is_alive = False
            if not is_alive:
                path.unlink()


def main(place: str, jvm_pid: str) -> None:
    """Import, and serve."""
    try:
        jvm = os.pidfd_open(int(jvm_pid))
        with kept_bytecode(Path(place).parent):
            import_all()
    except (CannotFork, OSError) as error:
        os.write(1, str(error).encode())
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    Path(place).unlink(missing_ok=True)  # of a server that was killed
    listener.bind(place)
    listener.listen(64)
    sweep(Path(place).parent)
    freeze()
    os.write(1, READY)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    request = Server(listener, jvm).serve()
    if request is not None:
        become(request)
        return
    for path in (place, f"{place}.lock"):
        Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
