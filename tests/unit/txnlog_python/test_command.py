"""`txnlog-python` beside plain Python: a forked process finds what a fresh interpreter finds.

A package of the name `pyspark` stands in for PySpark: its module `daemon` does what its argument
says.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.probe import wait_until

from txnlog_kafka import processes
from txnlog_python import command
from txnlog_python.server import LATER, Server

ROOT = Path(command.__file__).parents[1]
COMMAND = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from txnlog_python.command import main; "
COMMAND += "sys.exit(main())"
PROBE = """
import atexit, json, os, signal, sys, threading
GLOBAL = __name__

def look():
    at = sys.path.index(os.getcwd()) if os.getcwd() in sys.path else None
    return {
        "name": __name__, "main": sys.modules["__main__"].GLOBAL, "file": __file__,
        "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "cwd": os.getcwd(),
        "environment": dict(os.environ), "hash": hash("a"), "flags": str(sys.flags),
        "umask": os.umask(0o22), "stdin": sys.stdin.read(), "at": at,
        "signals": [str(signal.getsignal(n)) for n in (1, 2, 3, 10, 12, 13, 15, 17)],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": __import__("resource").getrlimit(7), "group": os.getpgrp(),
        "streams": [s.line_buffering for s in (sys.stdout, sys.stderr)], "nice": os.nice(0),
        "threads": threading.active_count(), "descriptors": sorted(os.listdir("/proc/self/fd"))[:3],
    }

def wait(*also):
    print(os.getpid(), *also, flush=True)
    sys.stdin.read()

def application_pid():
    from txnlog_kafka.processes import application_pid
    return application_pid()

def farewell():
    atexit.register(print, "farewell")
    threading.Thread(target=lambda: print("thread")).start()
    print("not flushed", end=" ")

if __name__ == "__main__":
    what = sys.argv[1]
    if what == "look":
        json.dump(look(), sys.stdout)
    elif what == "random":
        import random
        import numpy.random
        print(random.random(), numpy.random.random(), os.urandom(4).hex())
    else:
        eval(sys.argv[2])
"""

DIES_AFTER_FORK = """
import os, signal
fork = os.fork

def fork_and_die():
    pid = fork()
    if pid:
        while not os.path.getsize(os.environ["RUNS"]):
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)
    return pid

os.fork = fork_and_die
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand_in")
    for name in ("pyspark", "txnlog_spark"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    (folder / "pyspark" / "daemon.py").write_text(PROBE)
    (folder / "with_thread.py").write_text(
        "import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()"
    )
    (folder / "with_socket.py").write_text("import socket; held = socket.socket()")
    (folder / "slow.py").write_text("")
    (folder / "dies_after_fork.py").write_text(DIES_AFTER_FORK)
    return folder


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="warm-")  # a socket's path is short
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def variables(stand_in: Path, sockets: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    path = os.pathsep.join((str(stand_in), str(ROOT)))
    return kept | {"PYTHONPATH": path, "XDG_RUNTIME_DIR": str(sockets), "PYTHONHASHSEED": "0"}


def started(is_warm: bool, arguments: list[str], **how) -> subprocess.Popen:
    words = [sys.executable, "-c", COMMAND] if is_warm else [sys.executable]
    how.setdefault("cwd", how["env"]["PYTHONPATH"].partition(os.pathsep)[0])
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*words, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, **how
    )


def ended(is_warm: bool, arguments: list[str], **how) -> tuple[int, str, str]:
    with started(is_warm, arguments, **how) as process:
        out, err = process.communicate("some text\n")
    return process.returncode, out, err


def servers(sockets: Path) -> list[Path]:
    return [each for each in sockets.glob("txnlog-python-*/*") if each.suffix != ".lock"]


@pytest.mark.parametrize("seed", ["0", "7"])
def test_a_forked_process_finds_what_a_fresh_interpreter_finds(
    variables: dict[str, str], tmp_path: Path, seed: str
) -> None:
    words = ["-m", "pyspark.daemon", "look", "a b", "", "ä\n\udcff"]
    how = {"env": variables | {"PYTHONHASHSEED": seed, "OWN": "1"}, "cwd": tmp_path}
    forked, fresh = (json.loads(ended(is_warm, words, **how)[1]) for is_warm in (True, False))
    assert forked["environment"].pop(processes.APPLICATION_VARIABLE) == str(os.getpid())
    assert forked == fresh
    assert forked["stdin"] == "some text\n"
    how["env"] = variables | {"PYTHONHASHSEED": seed, "OTHER": "2"}
    second = json.loads(ended(True, words, **how)[1])
    assert second == fresh | {"environment": second["environment"]}
    assert "OWN" not in second["environment"]


@pytest.mark.parametrize(
    "action",
    [
        "sys.exit(3)", "sys.exit('a word')", "sys.exit()", "1 / 0", "os._exit(7)", "os.abort()",
        "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 2)",
        "farewell()",
    ],
)  # fmt: skip
def test_a_forked_process_ends_as_a_fresh_interpreter_does(
    variables: dict[str, str], action: str
) -> None:
    words = ["-m", "pyspark.daemon", "do", action]
    (code, out, err), (code_fresh, out_fresh, err_fresh) = (
        ended(is_warm, words, env=variables) for is_warm in (True, False)
    )
    assert (code, out) == (code_fresh, out_fresh)
    assert err.splitlines()[-1:] == err_fresh.splitlines()[-1:]


def test_ignored_signals_are_those_of_the_client(variables: dict[str, str]) -> None:
    words = ["-m", "pyspark.daemon", "look"]

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    forked, fresh = (
        json.loads(ended(is_warm, words, env=variables, preexec_fn=ignore)[1])
        for is_warm in (True, False)
    )
    assert forked["signals"] == fresh["signals"]


def test_processes_share_no_random_numbers(variables: dict[str, str]) -> None:
    env = variables | {"TXNLOG_PYTHON_IMPORTS": "random, numpy.random"}
    said = {ended(True, ["-m", "pyspark.daemon", "random"], env=env)[1] for _ in range(3)}
    numbers = [number for line in said for number in line.split()]
    assert len(set(numbers)) == len(numbers) == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_forked_process_ends_with_its_client(
    variables: dict[str, str], number: signal.Signals
) -> None:
    with started(True, ["-m", "pyspark.daemon", "do", "wait()"], env=variables) as client:
        pid = int(client.stdout.readline())
        client.send_signal(number)
        assert client.wait() == -number
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the forked process's end")


def test_the_end_of_a_forked_process_is_that_of_its_streams(variables: dict[str, str]) -> None:
    with started(True, ["-m", "pyspark.daemon", "do", "wait()"], env=variables) as client:
        pid = int(client.stdout.readline())
        os.kill(pid, signal.SIGKILL)
        assert client.stdout.read() == ""
        assert client.wait() == -signal.SIGKILL


def server_of(pid: int) -> int:
    """The process id of the server that has forked the process."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"txnlog_python.server" in Path(f"/proc/{parent}/cmdline").read_bytes()
    return parent


def test_processes_of_a_killed_server_end_and_the_next_has_another(
    variables: dict[str, str],
) -> None:
    words = ["-m", "pyspark.daemon", "do", "wait()"]
    with started(True, words, env=variables) as client:
        pid = int(client.stdout.readline())
        os.kill(server_of(pid), signal.SIGKILL)
        assert client.wait() == 1
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the forked process's end")
    with started(True, words, env=variables) as client:
        assert server_of(int(client.stdout.readline())) not in (pid, os.getpid())
        client.communicate("")
    assert client.returncode == 0


def test_a_process_whose_server_dies_at_once_is_not_run_a_second_time(
    variables: dict[str, str], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.touch()
    words = ["-m", "pyspark.daemon", "do", "open(os.environ['RUNS'], 'a').write('x') and wait()"]
    own = {"RUNS": str(runs), "TXNLOG_PYTHON_IMPORTS": "dies_after_fork"}
    assert ended(True, words, env=variables | own)[0] == 1
    assert runs.read_text() == "x"


def test_a_process_that_ends_just_before_its_client_is_killed_leaves_the_others_alone(
    variables: dict[str, str],
) -> None:
    words = ["-m", "pyspark.daemon", "do", "wait()"]
    with started(True, words, env=variables) as other, started(True, words, env=variables) as lost:
        pids = [int(each.stdout.readline()) for each in (other, lost)]
        server = server_of(pids[1])
        assert server_of(pids[0]) == server
        place = Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")[-3]
        held = [*Path(f"/proc/{server}/fd").iterdir()]
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(place)
            # The server waits for this request, and then sees both ends at once.
            wait_until(lambda: len([*Path(f"/proc/{server}/fd").iterdir()]) > len(held), "accept")
            os.kill(pids[1], signal.SIGKILL)
            stat = Path(f"/proc/{pids[1]}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "its end")
            lost.kill()
            lost.wait()
        wait_until(lambda: not Path(f"/proc/{pids[1]}").exists(), "the forked process's end")
        other.communicate("")
    assert other.returncode == 0
    assert ended(True, ["-m", "pyspark.daemon", "do", "print(7)"], env=variables)[:2] == (0, "7\n")


def test_a_listener_that_the_end_of_the_jvm_has_closed_accepts_nobody() -> None:
    """Both came in one round of events: a client connected, and the JVM ended."""
    with subprocess.Popen(["true"]) as jvm, socket.socket(socket.AF_UNIX) as listener:
        server = Server(listener, os.pidfd_open(jvm.pid))
        jvm.wait()
        for source in (server._listener, server._jvm):
            server._selector.register(source, selectors.EVENT_READ)
        (key,) = (each for each, _ in server._selector.select() if each.fileobj == server._jvm)
        server._handle(key)
        assert server._accept() is None


def test_an_idle_server_imports_what_tasks_need(variables: dict[str, str]) -> None:
    words = ["-m", "pyspark.daemon", "do"]
    with started(True, [*words, "wait()"], env=variables) as client:
        maps = Path(f"/proc/{server_of(int(client.stdout.readline()))}/maps")
        wait_until(lambda: "/pandas/" in maps.read_text(), "the import of pandas")
        _, out, _ = ended(True, [*words, "print(*sys.modules)"], env=variables)
        assert {*LATER} <= {*out.split()}
        client.communicate("")
    assert client.returncode == 0


@pytest.mark.parametrize(("threads", "is_same"), [("1", True), ("4", False)])
def test_planners_share_the_server_of_workers_with_one_thread(
    variables: dict[str, str], threads: str, is_same: bool
) -> None:
    """Spark sets OMP_NUM_THREADS for the workers of tasks alone."""
    words, found = ["-m", "pyspark.daemon", "do", "wait()"], []
    for env in (variables, variables | {"OMP_NUM_THREADS": threads}):
        with started(True, words, env=env) as client:
            found.append(server_of(int(client.stdout.readline())))
            client.communicate("")
    assert (found[0] == found[1]) is is_same


APPLICATION = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:], stdin=-1, stdout=-1, text=True) as client:
    print(client.stdout.readline(), flush=True, end="")
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_server_ends_with_its_application_and_serves_no_other(
    variables: dict[str, str], stand_in: Path, sockets: Path, is_killed: bool
) -> None:
    before = set(servers(sockets))
    words = [sys.executable, "-c", COMMAND, "-m", "pyspark.daemon", "do", "wait()"]
    pipe = subprocess.PIPE
    applications = [
        subprocess.Popen(
            [sys.executable, "-c", APPLICATION, *words],
            stdin=pipe, stdout=pipe, text=True, env=variables, cwd=stand_in,
        )
        for _ in range(2)
    ]  # fmt: skip
    pids = [int(each.stdout.readline()) for each in applications]
    found = [server_of(pid) for pid in pids]
    assert len({*found}) == 2
    assert len(set(servers(sockets)) - before) == 2
    for application in applications:
        with application:
            if is_killed:
                application.kill()
    for server in found:
        wait_until(lambda server=server: not Path(f"/proc/{server}").exists(), "the server's end")
    assert set(servers(sockets)) == before


SUBMIT = """
import os, subprocess, sys
command, path = sys.argv[1:-1], {"PYTHONPATH": sys.argv[-1]}
def started(words, variables):
    variables = {**os.environ, **variables}
    return subprocess.Popen([*command, *words], stdin=-1, stdout=-1, env=variables)

with started(["-c", "input()"], {"PYSPARK_GATEWAY_PORT": "1"}) as driver:
    input()
    with started(["-m", "pyspark.daemon", "do", "wait(application_pid())"], path) as client:
        print(client.stdout.readline().decode(), end="", flush=True)
        input()
"""


def test_the_server_of_a_driver_starts_with_the_driver(
    variables: dict[str, str], sockets: Path, tmp_path: Path
) -> None:
    """`spark-submit` is the JVM that starts the driver, and then the processes that are forked."""
    before = set(servers(sockets))
    java = tmp_path / "java"
    java.symlink_to(Path(sys.executable).resolve())
    # As Spark does: the driver's path, twice.
    path = os.pathsep.join([variables["PYTHONPATH"]] * 2)
    words = ["-c", SUBMIT, sys.executable, "-c", COMMAND, path]
    with started(False, words, env=variables, executable=str(java)) as jvm:
        wait_until(lambda: set(servers(sockets)) - before, "the server's socket")
        jvm.stdin.write("\n")
        jvm.stdin.flush()
        pid, application = map(int, jvm.stdout.readline().split())
        assert application == jvm.pid  # although no ancestor of the process is this JVM
        server = server_of(pid)
        (place,) = set(servers(sockets)) - before
        assert place.name.startswith(f"{jvm.pid}-")
        assert str(place) in Path(f"/proc/{server}/cmdline").read_text()
        jvm.stdin.write("\n")
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "the server's end")


def test_a_server_removes_what_killed_ones_have_left(
    variables: dict[str, str], sockets: Path
) -> None:
    words = ["-m", "pyspark.daemon", "do", "wait()"]
    application = [sys.executable, "-c", APPLICATION, sys.executable, "-c", COMMAND, *words]
    folder = Path(variables["PYTHONPATH"].partition(os.pathsep)[0])
    pipe = subprocess.PIPE
    with subprocess.Popen(
        application, stdin=pipe, stdout=pipe, text=True, env=variables, cwd=folder
    ) as killed:
        server = server_of(int(killed.stdout.readline()))
        left = {each for each in servers(sockets) if each.name.startswith(f"{killed.pid}-")}
        assert len(left) == 1
        os.kill(server, signal.SIGKILL)
    assert set(servers(sockets)) >= left
    env = variables | {"PYTHONHASHSEED": "9"}
    assert ended(True, ["-m", "pyspark.daemon", "do", "print(1)"], env=env)[1] == "1\n"
    assert not set(servers(sockets)) & left


@pytest.mark.parametrize(
    ("imports", "named"),
    [
        ("with_thread", "the module with_thread starts threads"),
        ("slow, with_socket", "the module with_socket opens connections"),
        ("no_such_module", "import no_such_module: ModuleNotFoundError: No module named"),
        ("/no/such/file", "No such file or directory: '/no/such/file'"),
    ],
)
def test_what_cannot_be_warm_runs_in_a_fresh_python_and_one_line_says_why(
    variables: dict[str, str], imports: str, named: str
) -> None:
    env = variables | {"TXNLOG_PYTHON_IMPORTS": imports}
    code, out, err = ended(True, ["-m", "pyspark.daemon", "do", "print(1)"], env=env)
    assert (code, out) == (0, "1\n")
    (line,) = err.splitlines()
    assert line.startswith("txnlog-python: starting a fresh Python: ")
    assert named in line


def test_imports_may_be_a_file(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "imports").write_text("# ours\nslow, json  # both\n\n")
    env = variables | {"TXNLOG_PYTHON_IMPORTS": str(tmp_path / "imports")}
    action = "print('slow' in sys.modules, 'wave' in sys.modules)"
    assert ended(True, ["-m", "pyspark.daemon", "do", action], env=env) == (0, "True False\n", "")


@pytest.mark.parametrize("mode", [0o755, 0o770, None])
def test_a_folder_that_others_can_enter_is_not_used(
    variables: dict[str, str], tmp_path: Path, mode: int | None
) -> None:
    place = tmp_path / f"txnlog-python-{os.getuid()}"
    if mode is None:
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        place.chmod(mode)
    env = variables | {"XDG_RUNTIME_DIR": str(tmp_path)}
    code, out, err = ended(True, ["-m", "pyspark.daemon", "do", "print(1)"], env=env)
    assert (code, out) == (0, "1\n")
    assert "is not a folder that only this user can enter" in err


@pytest.mark.parametrize("words", [["-c", "print(1)"], ["-"], ["-m", "json.tool"], ["-V"]])
def test_other_than_pysparks_modules_run_plainly(
    variables: dict[str, str], sockets: Path, words: list[str]
) -> None:
    before = servers(sockets)
    with started(True, words, env=variables) as process:
        out, err = process.communicate('"x"' if words[0] == "-m" else "print(1)")
    assert (process.returncode, err) == (0, "")
    assert out
    assert servers(sockets) == before


def test_another_platform_runs_plainly_and_says_so(
    variables: dict[str, str], stand_in: Path
) -> None:
    changed = COMMAND.replace(
        "import main; ", "import main; import txnlog_python.command as c; c.PLATFORM = 'minix'; "
    )
    done = subprocess.run(
        [sys.executable, "-c", changed, "-m", "pyspark.daemon", "do", "print(1)"],
        env=variables, cwd=stand_in, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"
    assert "processes are forked on minix only" in done.stderr
