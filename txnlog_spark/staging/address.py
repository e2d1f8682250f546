"""Address of this application's staging server: the first process that needs the server starts it,
all others find it.

Each application (its JVM, by process id and start time) has one private directory for each set of
settings. The server's Unix socket in that directory is how processes find it: a process that can
connect asks the server for its address and token. A process that finds no server takes
`start.lock`, binds both sockets, and starts the server with them. The system accepts connections
from then on, so no query waits for the server's start.

The server inherits a lock on `alive.lock`. A directory whose lock is free belongs to a server that
was killed: the next start removes the directory.
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
from typing import Any, TextIO

from txnlog_kafka.processes import (
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
"""Longest path of a Unix socket, in bytes; the system's limit is 108 on Linux and 104 on macOS."""
TRIES_MAX = 10
"""Number of tries to start the server. A try fails if another start removed the directory between
two steps of this one."""
END_WAIT_S = 5.0
END_POLL_S = 0.02
LOCAL_IP_VARIABLE = "SPARK_LOCAL_IP"
LOCAL_DIRS_VARIABLES = ("SPARK_LOCAL_DIRS", "LOCAL_DIRS")
"""Environment variables with Spark's spill directories on this machine; LOCAL_DIRS is YARN's."""


@dataclass(frozen=True, slots=True)
class StagingSettings:
    """Options of the staging server; None stands for the application's default.

    `bind_address`: address that the server listens on for executors; default SPARK_LOCAL_IP, else
    all addresses. `host`: name that executors connect to; default spark.driver.host. `directory`:
    directory for staged rows; default Spark's local directory, else the temporary directory.
    `disk_bytes_max`: most bytes staged there; default most of the free space.
    """

    bind_address: str | None
    port: int
    host: str | None
    directory: str | None
    disk_bytes_max: int | None


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address at which a task reaches the server; travels in the pickled writer. Its repr leaves
    out the token. `pid` is the server's process on the driver's machine, for messages."""

    local_path: str
    host: str
    port: int
    token: str
    pid: int

    def __repr__(self) -> str:
        return f"ServerAddress({self.host}:{self.port})"


def ensure_server(settings: StagingSettings) -> ServerAddress:
    """Return the address of this application's server; start the server if needed.

    Raises OptionError if `stagingPort` or `stagingBindAddress` cannot be bound. Raises
    StagingFailed if the server's directory cannot be made, or if a running server does not answer.
    """
    directory = server_directory(settings)
    found = _ask_server(directory)
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
    """Return the address of the server, which is started if needed.

    Another start may just have removed the directory of a killed server: then this returns None or
    raises FileNotFoundError, and the caller tries again.
    """
    make_private(directory.parent, directory)
    with locked(directory / START_FILE) as lock:
        if os.fstat(lock.fileno()).st_nlink == 0:
            return None
        return _ask_server(directory) or _start_server(settings, directory)


def _no_directory(directory: Path, error: OSError) -> StagingFailed:
    return StagingFailed(
        f"the staging server cannot be started in {directory} ({error}): grant access, or set "
        "TMPDIR to a directory of this user"
    )


def running_server(settings: StagingSettings) -> Channel | None:
    """Connect to this application's server as its driver; return None if no server runs.

    Raises ServerSilent, and StagingFailed if another user owns the directory.
    """
    return _connect_to_server(server_directory(settings))


def silent_server(settings: StagingSettings) -> str:
    """Name the silent server of this application, and say what to do."""
    return silence(_server_in(server_directory(settings)))


def _server_in(directory: Path) -> str:
    """Name a server by the process and address that its start wrote down."""
    try:
        alive = (directory / ALIVE_FILE).read_text()
    except OSError:
        alive = ""
    return f"the staging server of this application (process {alive or '?'})"


def _connect_to_server(directory: Path) -> Channel | None:
    """Connect to the server in `directory`; return None if no server answers. Raises ServerSilent.

    Raises StagingFailed unless the directory is private to this user: another user's directory
    could have a server that steals the rows.
    """
    try:
        check_private(directory.parent, directory)
        return connect_local(str(directory / SOCKET_FILE))
    except ServerSilent:
        raise
    except (FileNotFoundError, ServerGone):
        return None


def server_directory(settings: StagingSettings) -> Path:
    """Return the directory of this application's server with these settings; it need not exist.

    Raises StagingFailed if the path is too long for a Unix socket.
    """
    pid = application_pid()
    which = json.dumps([pid, start_time(pid), *astuple(settings)])
    name = hashlib.sha256(which.encode()).hexdigest()[:16]
    # Not `tempfile`: it chooses a directory with free space, and staged files may fill this one.
    # All processes of the application must compute the same path.
    for parent in (os.environ.get("TMPDIR"), "/tmp"):
        if not parent:
            continue
        directory = Path(parent) / f"txnlog-staging-{os.getuid()}" / name
        if len(os.fsencode(directory / SOCKET_FILE)) <= SOCKET_PATH_BYTES_MAX:
            return directory
    raise StagingFailed("the path of the temporary directory is too long for a Unix socket")


def _ask_server(directory: Path) -> ServerAddress | None:
    """Return the address that the running server sends, None if no server runs.

    Raises StagingFailed if the server is silent. A silent server may hold staged rows, so no second
    server is started.
    """
    try:
        channel = _connect_to_server(directory)
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


def _start_server(settings: StagingSettings, directory: Path) -> ServerAddress:
    """Bind both sockets and start the server process; the caller holds `start.lock`.

    Does not wait for the process: a task that finds that it has ended reads its log.
    """
    # Disk space of killed servers is freed first: the new server may need it.
    _sweep_directories(directory.parent, but=directory)
    token = secrets.token_hex(TOKEN_BYTES)
    spool = _spool_directory(settings, directory)
    with contextlib.ExitStack() as stack:
        alive = stack.enter_context((directory / ALIVE_FILE).open("a+"))
        _lock_alive(alive)
        # Bind after the lock: if a suspended server still holds it, its socket must stay, because
        # processes find that server again by this socket.
        local = stack.enter_context(_listen_local(directory / SOCKET_FILE))
        remote = stack.enter_context(_listen_for_tasks(settings))
        port = remote.getsockname()[1]
        address: dict[str, Any] = {
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
                # The package may have come with --py-files: then only sys.path names it.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        alive.truncate(0)
        alive.write(f"{process.pid} at {address['host']}:{port}")
        alive.flush()
        with present(process.stdin, "the server's standard input is a pipe") as pipe:
            pipe.write(json.dumps(start).encode() + b"\n")
    return ServerAddress(**address, pid=process.pid)


def _lock_alive(alive: TextIO) -> None:
    """Lock `alive.lock`, which says that the server lives.

    A server that has just ended may hold the lock a little longer, so the lock is tried for
    END_WAIT_S.
    """
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


def _listen_for_tasks(settings: StagingSettings) -> socket.socket:
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
            f"set it to one that the driver can listen on ({error.strerror}). Queries of one "
            "application share a server, and its port, if all their staging options are equal",
        ) from error


def _spool_directory(settings: StagingSettings, directory: Path) -> Path:
    """Return a directory for staged files: `stagingDirectory`, else a directory where Spark spills,
    else the server's own directory."""
    if settings.directory is not None:
        try:
            return _spool_in(settings.directory, directory)
        except OSError as error:
            raise OptionError(
                "stagingDirectory",
                settings.directory,
                f"set it to a directory that the driver can write to ({error})",
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


def _sweep_directories(parent: Path, *, but: Path) -> None:
    """Remove the directories of servers that were killed, with their staged files.

    A cleaner of old files may have deleted a server's lock files. Then the server's socket tells
    whether the server runs.
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
                    channel = _connect_to_server(directory)
                except ServerSilent:
                    # The server lives and needs its files, although it does not answer in time.
                    continue
                if channel is not None:
                    channel.close()
                    continue
            except OSError:
                continue  # a server holds the lock, or this is a file
            spool = directory / "spool"
            if spool.is_symlink():
                remove_directory(spool.resolve())
            remove_directory(directory)
