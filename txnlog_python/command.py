"""The client: `txnlog-python -m pyspark.MODULE ...` in the place of `python -m pyspark.MODULE ...`.

A process of this module lives beside each forked one, and starts before it: it imports little.

Everything else than a module of PySpark's runs with plain Python at once, as does everything where
no process can be forked: another platform, a server that does not start, an argument that is too
long. Then one line on stderr says why.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from _blake2 import blake2b  # `hashlib` would load OpenSSL

IMPORTS_VARIABLE = "TXNLOG_PYTHON_IMPORTS"
PLATFORM = "linux"
READY = b"!"
NUMBER_BYTES = 8
STREAMS = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
"""The standard streams' descriptors, as C has them."""
DEATH_SIGNALS = (1, 2, 3, 10, 12, 15)
"""SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2 and SIGTERM are handed on to the forked process."""
AT_START = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "ARROW_")
"""Variables that a process reads while it starts: a server serves those that have the same."""
OF_EACH_PROCESS = ("PYTHON_WORKER_", "PYTHON_FAULTHANDLER_", "PYTHON_DAEMON_", "PYTHON_UDF_")
"""Spark's own variables for one worker, which have no meaning to Python."""


def main() -> int:
    """Run what the arguments say. The exit code is that of the process that was forked."""
    arguments = sys.argv[1:]
    is_sparks = len(arguments) > 1 and arguments[0] == "-m" and arguments[1].startswith("pyspark.")
    if not is_sparks:
        return run_plainly(arguments)
    if sys.platform != PLATFORM:
        return run_plainly(arguments, f"processes are forked on {PLATFORM} only")
    try:
        return run_forked(arguments)
    except (OSError, NotForked) as error:
        return run_plainly(arguments, str(error))


class NotForked(Exception):
    """No process was forked, for the reason in the message."""


def run_plainly(arguments: list[str], reason: str | None = None) -> int:
    """Become a fresh interpreter; say why if it was to be a forked one."""
    if reason is not None:
        os.write(2, f"txnlog-python: starting a fresh Python: {reason}\n".encode())
    os.execv(sys.executable, [sys.executable, *found_out(), *arguments])


def found_out() -> list[str]:
    """Return what this process has found out of a C locale, and its environment now hides."""
    return ["-X", "utf8=1"] if sys.flags.utf8_mode else []


def run_forked(arguments: list[str]) -> int:
    """Have the server fork a process for these arguments, and wait for its end.

    Raises NotForked and OSError as long as there is no such process.
    """
    connection = connected()
    request = packed(arguments)
    connection.sendmsg(
        [len(request).to_bytes(NUMBER_BYTES, "big")],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, STREAMS)],
    )
    connection.sendall(request)
    pid = received_number(connection)
    if pid is None:
        raise NotForked("the server has ended, or could not fork")
    for number in DEATH_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: _handed_on(pid, number))
    # The forked process alone has the streams, so they end when it ends.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    status = received_number(connection)
    if status is None:
        return 1  # the server was killed, and with it the forked process
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in DEATH_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


def _handed_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended: its status is on the way


def received_number(connection: socket.socket) -> int | None:
    """Receive a number; None if the connection ends before it."""
    data = b""
    while len(data) < NUMBER_BYTES:
        more = connection.recv(NUMBER_BYTES - len(data))
        if not more:
            return None
        data += more
    return int.from_bytes(data, "big")


def packed(arguments: list[str]) -> bytes:
    """Pack the arguments, ignored signals and the environment, each with a NUL at its end."""
    ignored = [n for n in DEATH_SIGNALS if signal.getsignal(n) is signal.SIG_IGN]
    parts = [str(len(arguments)).encode(), *map(os.fsencode, arguments)]
    parts.append(",".join(map(str, ignored)).encode())
    parts += [name + b"=" + value for name, value in os.environb.items()]
    return b"\0".join(parts)


def started_at(pid: int) -> str:
    """Return when a process was started, in the clock's ticks: its id is used again."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def set_up() -> bytes:
    """Return what a fresh interpreter would find at its start."""
    names = sorted(
        name
        for name in os.environ
        if name.startswith((*AT_START, "LANG", "TZ", "TXNLOG_PYTHON_"))
        and not name.startswith(OF_EACH_PROCESS)
    )
    given = [f"{name}={os.environ[name]}" for name in names]
    parts = [sys.executable, os.getcwd(), *found_out(), *given]
    return os.fsencode("\0".join(parts))


def home() -> str:
    """Return the folder of the sockets, which this user alone may enter. Raises NotForked."""
    parent = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
    folder = os.path.join(parent, f"txnlog-python-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        raise NotForked(f"{folder} is not a folder that only this user can enter: remove it")
    return folder


def connected() -> socket.socket:
    """Return a connection to the server, which is started if there is none."""
    jvm, digest = os.getppid(), blake2b(set_up(), digest_size=16).hexdigest()
    place = os.path.join(home(), f"{jvm}-{started_at(jvm)}-{digest}")
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(place)
        except OSError:
            start_server(place)
            connection.connect(place)
        return connection


def start_server(place: str) -> None:
    """Start the server; return when it listens. Raises NotForked with what it said."""
    listens, says = os.pipe()
    words = [*found_out(), "-m", "txnlog_python.server", place, str(os.getppid())]
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, says, 1),
    ]
    os.posix_spawn(sys.executable, [sys.executable, *words], os.environ, file_actions=streams)
    os.close(says)
    said = b""
    while more := os.read(listens, 4096):
        said += more
        if said == READY:
            break
    os.close(listens)
    if said != READY:
        reason = said.decode(errors="replace").strip()
        raise NotForked(reason or "the process that forks has ended while it started")


if __name__ == "__main__":
    sys.exit(main())
