"""Client: `txnlog-python -m pyspark.MODULE ...` in the place of `python -m pyspark.MODULE ...`.

A process of this module lives beside each forked process, and starts before it: it imports little.

Only a module of PySpark's is forked: any other command runs with plain Python at once. If no
process can be forked (another platform, a server that does not start, an argument that is too
long), plain Python runs, and one line on stderr says why.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import fcntl
import os
import sys
from _blake2 import blake2b

# `hashlib`, `signal` and `socket` would load OpenSSL and `enum`: a fourth of this process's time.

IMPORTS_VARIABLE = "TXNLOG_PYTHON_IMPORTS"
APPLICATION_VARIABLE = "TXNLOG_APPLICATION_PID"
"""A variable that a forked process has besides: its JVM, which is not an ancestor any more when the
client that started the server has ended."""
DRIVERS_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""A variable that `spark-submit` sets for the driver's Python."""
PLATFORM = "linux"
READY = b"!"
NUMBER_BYTES = 8
STREAMS = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
"""Descriptors of the standard streams, as C has them."""
DEATH_SIGNALS = (1, 2, 3, 10, 12, 15)
"""Signals that the client hands on to the forked process."""
AT_START = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "ARROW_")
"""Variables that a process reads while it starts: a server serves processes with the same
values."""
PATH = "PYTHONPATH"
ASSUMED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""Variables that Spark sets for the workers of tasks, with the usual values (`spark.task.cpus` for
the second). A process without them may have any seed and any number of threads, so the workers'
server serves it."""
OF_EACH_PROCESS = ("PYTHON_WORKER_", "PYTHON_FAULTHANDLER_", "PYTHON_DAEMON_", "PYTHON_UDF_")
"""Variables that Spark sets for one worker, which have no meaning to Python."""


def main() -> int:
    """Run the command of the arguments; return the exit code of the forked process."""
    arguments = sys.argv[1:]
    is_sparks = len(arguments) > 1 and arguments[0] == "-m" and arguments[1].startswith("pyspark.")
    if not is_sparks:
        if DRIVERS_VARIABLE in os.environ and sys.platform == PLATFORM:
            start_early()
        return run_plainly(arguments)
    if sys.platform != PLATFORM:
        return run_plainly(arguments, f"processes are forked on {PLATFORM} only")
    try:
        return run_forked(arguments)
    except (OSError, NotForked) as error:
        return run_plainly(arguments, str(error))


def start_early() -> None:
    """Start the server of a driver's JVM in the background, while the driver itself starts.

    If this fails, the first process that needs the server says why.
    """
    jvm = os.getppid()
    with open(f"/proc/{jvm}/comm", "rb") as file:
        if file.read() != b"java\n":
            return  # not the driver, but a process that the driver starts
    if (between := os.fork()) == 0:
        if os.fork() == 0:
            try:
                connected(jvm)
            except (OSError, NotForked):
                pass
        os._exit(0)
    os.waitpid(between, 0)  # the driver's Python has no child that it does not know


class NotForked(Exception):
    """Failure to fork a process, for the reason in the message."""


def run_plainly(arguments: list[str], reason: str | None = None) -> int:
    """Become a fresh interpreter; say why if a forked process was wanted."""
    if reason is not None:
        os.write(2, f"txnlog-python: starting a fresh Python: {reason}\n".encode())
    os.execv(sys.executable, [sys.executable, *found_out(), *arguments])


def found_out() -> list[str]:
    """Return options that this process found out from a C locale; its environment now hides
    them."""
    return ["-X", "utf8=1"] if sys.flags.utf8_mode else []


def run_forked(arguments: list[str]) -> int:
    """Have the server fork a process for these arguments, and wait for its end.

    Raises NotForked and OSError as long as there is no such process.
    """
    connection = connected(os.getppid())
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
    own = {APPLICATION_VARIABLE.encode(): str(os.getppid()).encode()}
    parts += [name + b"=" + value for name, value in (os.environb | own).items()]
    return b"\0".join(parts)


def started_at(pid: int) -> str:
    """Return when a process was started, in the clock's ticks: its id is used again."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def set_up() -> bytes:
    """Return the values that a fresh interpreter would find at its start."""
    names = sorted(
        name
        for name in os.environ
        if name.startswith((*AT_START, "LANG", "TZ", "TXNLOG_PYTHON_"))
        and name != PATH
        and not name.startswith(OF_EACH_PROCESS)
    )
    given = [f"{name}={os.environ[name]}" for name in names if name not in ASSUMED]
    # Spark gives a driver's path to its workers twice, which makes no difference to Python.
    given.append(os.pathsep.join(dict.fromkeys(os.environ.get(PATH, "").split(os.pathsep))))
    given += [os.environ.get(name, value) for name, value in ASSUMED.items()]
    parts = [sys.executable, os.getcwd(), *found_out(), *given]
    return os.fsencode("\0".join(parts))


def home() -> str:
    """Return the folder of the sockets, which this user alone may enter. Raises NotForked."""
    parent = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
    folder = os.path.join(parent, f"txnlog-python-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        # An earlier application made the folder, or another user did: its owner and mode say which.
        pass
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        raise NotForked(f"{folder} is not a folder that only this user can enter: remove it")
    return folder


def connected(jvm: int) -> socket.socket:
    """Return a connection to the server of the JVM, which is started if there is none."""
    digest = blake2b(set_up(), digest_size=16).hexdigest()
    place = os.path.join(home(), f"{jvm}-{started_at(jvm)}-{digest}")
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(place)
        except OSError:
            start_server(place, jvm)
            connection.connect(place)
        return connection


def start_server(place: str, jvm: int) -> None:
    """Start the server; return when it listens. Raises NotForked with the server's message."""
    listens, says = os.pipe()
    words = [*found_out(), "-m", "txnlog_python.server", place, str(jvm)]
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, says, 1),
    ]
    environment = {**ASSUMED, **os.environ}
    os.posix_spawn(sys.executable, [sys.executable, *words], environment, file_actions=streams)
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
