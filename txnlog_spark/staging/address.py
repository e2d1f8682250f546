"""The staging server of this application: started by the first process that needs it, found by all
others.

Each application (its JVM, by process id and start time) has a directory of its own for each set of
settings, for this user alone. The server's Unix socket in it is how it is found: a process that can
connect asks it for its address and token. A process that finds no server there holds `start.lock`,
binds both sockets, and starts the server with them; connections are accepted by the system from
then on, so that no query waits for the process to come up.

The server inherits a lock on `alive.lock`. Directories whose lock nobody holds are those of
servers that were killed: the next start removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TextIO

from txnlog_kafka.host.processes import (
    application_pid,
    locked,
    remove_directory,
    start_time,
)
from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import OptionError, StagingFailed
from txnlog_spark.staging.channel import (
    Channel,
    ServerGone,
    ServerSilent,
    commands_for,
    connect_local,
    silence,
)
from txnlog_spark.staging.frames import Kind
from txnlog_spark.staging.server_files import (
    ALIVE_FILE,
    BACKLOG,
    LOG_FILE,
    SOCKET_FILE,
    START_FILE,
    check_private,
    make_private,
)

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32
SOCKET_PATH_BYTES_MAX = 100
"""Of a Unix socket's path; the system's bound is 108 on Linux and 104 on macOS."""
TRIES_MAX = 10
"""Each is for another start that removed the directory between two steps of this one."""
END_WAIT_S = 5.0
END_POLL_S = 0.02
LOCAL_IP_VARIABLE = "SPARK_LOCAL_IP"
LOCAL_DIRS_VARIABLES = ("SPARK_LOCAL_DIRS", "LOCAL_DIRS")
"""Where Spark puts what it spills on this machine, as far as a Python process learns: YARN's
too."""


@dataclass(frozen=True, slots=True)
class StagingSettings:
    """The staging server's options; None is what the application's surroundings say.

    `bind_address`: where it listens for executors: SPARK_LOCAL_IP, else everywhere. `host`: the
    name that executors connect to: spark.driver.host. `directory`: for staged rows: Spark's local
    directory, else the temporary one; up to `disk_bytes_max`: most of what is free.
    """

    bind_address: str | None
    port: int
    host: str | None
    directory: str | None
    disk_bytes_max: int | None


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How a task reaches the server; travels in the pickled writer. Never shown: it has the
    token. `pid` is the server's process on the driver's machine, for messages."""

    local_path: str
    host: str
    port: int
    token: str
    pid: int

    def __repr__(self) -> str:
        return f"ServerAddress({self.host}:{self.port})"


def ensure_server(settings: StagingSettings) -> ServerAddress:
    """The address of this application's server, started if there is none.

    Raises OptionError when `stagingPort` or `stagingBindAddress` cannot be bound, StagingFailed
    when there is no directory for it, or one that is there does not answer.
    """
    directory = server_directory(settings)
    found = _ask(directory)
    tries = 0
    while found is None:
        tries += 1
        try:
            found = _ask_or_start(settings, directory)
        except FileNotFoundError as error:
            if tries == TRIES_MAX:
                raise _no_directory(directory, error) from error
        except OSError as error:
            raise _no_directory(directory, error) from error
    return found


def _ask_or_start(settings: StagingSettings, directory: Path) -> ServerAddress | None:
    """None, or FileNotFoundError, where another start has just removed the directory of a server
    that was killed."""
    make_private(directory.parent, directory)
    with locked(directory / START_FILE) as lock:
        if os.fstat(lock.fileno()).st_nlink == 0:
            return None
        found = _ask(directory)
        if found is None:
            _start(settings, directory)
            found = _ask(directory)
        if found is None:
            raise StagingFailed(
                f"the staging server has ended at its start: {_last_line(directory / LOG_FILE)}"
            )
        return found


def _no_directory(directory: Path, error: OSError) -> StagingFailed:
    return StagingFailed(
        f"the staging server cannot be started in {directory} ({error}): grant access, or set "
        "TMPDIR to a directory of this user"
    )


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError as error:
        return str(error)
    return f"{lines[-1] if lines else 'no output'} (see {log})"


def running_server(settings: StagingSettings) -> Channel | None:
    """A connection to this application's server as its driver, None when there is none.

    Raises ServerSilent, and StagingFailed where a directory of somebody else is in its place.
    """
    return _connect(server_directory(settings))


def silent_server(settings: StagingSettings) -> str:
    """Say which server of this application is silent, and what to do."""
    return silence(_server_in(server_directory(settings)))


def _server_in(directory: Path) -> str:
    """Name a server by what was written when it was started."""
    try:
        alive = (directory / ALIVE_FILE).read_text()
    except OSError:
        alive = ""
    return f"the staging server of this application (process {alive or '?'})"


def _connect(directory: Path) -> Channel | None:
    """Connect; raises ServerSilent.

    Another user that made the directory could take its rows, so it has to be this user's.
    """
    try:
        check_private(directory.parent, directory)
        return connect_local(str(directory / SOCKET_FILE))
    except ServerSilent:
        raise
    except (FileNotFoundError, ServerGone):
        return None


def server_directory(settings: StagingSettings) -> Path:
    """Name the directory of this application's server with these settings; it need not be there.

    Raises StagingFailed where the path is too long for a Unix socket.
    """
    pid = application_pid()
    which = json.dumps([pid, start_time(pid), *astuple(settings)])
    name = hashlib.sha256(which.encode()).hexdigest()[:16]
    # Not `tempfile`, which looks for a directory with free space, and spooling may fill this one.
    for parent in (os.environ.get("TMPDIR"), "/tmp"):
        if not parent:
            continue
        directory = Path(parent) / f"txnlog-staging-{os.getuid()}" / name
        if len(os.fsencode(directory / SOCKET_FILE)) <= SOCKET_PATH_BYTES_MAX:
            return directory
    raise StagingFailed("the path of the temporary directory is too long for a Unix socket")


def _ask(directory: Path) -> ServerAddress | None:
    """The address that the running server gives. Raises StagingFailed for one that is silent: it
    may have what tasks have staged, and is not started again."""
    try:
        channel = _connect(directory)
        if channel is None:
            return None
        with channel:
            return ServerAddress(**json.loads(channel.ask(Kind.WHERE, None, Kind.ADDRESS)))
    except ServerSilent as error:
        who = _server_in(directory)
        raise StagingFailed(
            f"{silence(who)}. Nothing was committed; start the query again{commands_for(who)}"
        ) from error
    except ServerGone:
        return None


# ---------------------------------------------------------------------- starting it


def _start(settings: StagingSettings, directory: Path) -> None:
    """Bind, and start the process; its `start.lock` is held."""
    _sweep(directory.parent, but=directory)
    token = secrets.token_hex(TOKEN_BYTES)
    spool = _spool_directory(settings, directory)
    with contextlib.ExitStack() as stack:
        alive = stack.enter_context((directory / ALIVE_FILE).open("a+"))
        _lock_alive(alive)
        # Only now: a server that stands still for a while is found again by its socket.
        local = stack.enter_context(_listen_local(directory / SOCKET_FILE))
        remote = stack.enter_context(_listen(settings))
        port = remote.getsockname()[1]
        address = {
            "local_path": str(directory / SOCKET_FILE),
            "host": settings.host or socket.gethostname(),
            "port": port,
            "token": token,
        }
        pid = application_pid()
        start = {
            "token": token,
            "directory": str(directory),
            "spool_directory": str(spool),
            "spool_bytes_max": settings.disk_bytes_max,
            "application_pid": pid,
            "application_start": start_time(pid),
            "unix_descriptor": local.fileno(),
            "tcp_descriptor": remote.fileno(),
            "address": address,
        }
        with (directory / LOG_FILE).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "txnlog_spark.staging.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                pass_fds=(local.fileno(), remote.fileno(), alive.fileno()),
                # The package may have come with --py-files, which only sys.path knows.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        alive.truncate(0)
        alive.write(f"{process.pid} at {address['host']}:{port}")
        alive.flush()
        with present(process.stdin, "the server's standard input is a pipe") as pipe:
            pipe.write(json.dumps(start).encode() + b"\n")


def _lock_alive(alive: TextIO) -> None:
    """Hold what says that the server lives; one that has just ended may hold it a little longer."""
    deadline = time.monotonic() + END_WAIT_S
    while True:
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                alive.seek(0)
                who = f"the staging server of this application (process {alive.read() or '?'})"
                raise StagingFailed(
                    f"{who} neither answers nor ends: if it hangs, end it, and start the query "
                    f"again{commands_for(who)}"
                ) from error
            time.sleep(END_POLL_S)
        else:
            return


def _listen_local(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    return listener


def _listen(settings: StagingSettings) -> socket.socket:
    address = settings.bind_address or os.environ.get(LOCAL_IP_VARIABLE) or ""
    try:
        if not address and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", settings.port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        name = "stagingPort" if settings.port else "stagingBindAddress"
        value = settings.port or address
        raise OptionError(
            name,
            value,
            f"an address that the driver can listen on ({error.strerror}). Queries of one "
            "application share a server, and its port, if all their staging options are equal",
        ) from error


def _spool_directory(settings: StagingSettings, directory: Path) -> Path:
    """A directory for staged files: where it was asked for, else where Spark spills, if it can."""
    if settings.directory is not None:
        try:
            return _spool_in(settings.directory, directory)
        except OSError as error:
            raise OptionError(
                "stagingDirectory", settings.directory, f"a directory to write to ({error})"
            ) from error
    for variable in LOCAL_DIRS_VARIABLES:
        for parent in filter(None, map(str.strip, os.environ.get(variable, "").split(","))):
            try:
                return _spool_in(parent, directory)
            except OSError as error:
                logger.warning("rows are not staged in %s of %s: %s", parent, variable, error)
    return directory


def _spool_in(parent: str, directory: Path) -> Path:
    spool = Path(parent) / directory.parent.name / directory.name
    Path(parent).mkdir(parents=True, exist_ok=True)
    make_private(spool.parent, spool)
    (directory / "spool").unlink(missing_ok=True)
    (directory / "spool").symlink_to(spool)
    return spool


def _sweep(parent: Path, *, but: Path) -> None:
    """Remove the directories of servers that were killed, with what they held.

    Without its locks, which a cleaner of old files may have taken, a server is asked for by its
    socket.
    """
    for directory in parent.iterdir():
        if directory == but:
            continue
        with contextlib.ExitStack() as stack:
            try:
                for name in (START_FILE, ALIVE_FILE):
                    file = stack.enter_context((directory / name).open("r+"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except FileNotFoundError:
                try:
                    channel = _connect(directory)
                except ServerSilent:
                    continue
                if channel is not None:
                    channel.close()
                    continue
            except OSError:
                continue  # in use, or no directory
            spool = directory / "spool"
            if spool.is_symlink():
                remove_directory(spool.resolve())
            remove_directory(directory)
