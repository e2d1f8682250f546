"""A Python that has already imported what Spark's Python processes import.

Spark starts a Python process for each source of each query, and two for each kind of planner: a
fifth of the processor time of such tests went into their imports. `WarmPython` imports once, and
then forks. `WarmPython.command` takes the place of `python` in PYSPARK_PYTHON: it hands over its
arguments, environment and standard streams, and lives as long as the process that has them.

What is forked has nothing of Spark's garbage to collect after each task but its own (gc.freeze).
The jobs that run under spark-submit have Spark's own way: they are the drivers of the crash tests,
the demo, the README's first steps.
"""

from __future__ import annotations

import array
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CLIENT = Path(__file__).with_name("warm_client.py")
IMPORTED = (
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
    "pandas",
    "txnlog_spark.datasource",
    "txnlog_spark.source.batch",
    "txnlog_spark.source.stream",
    "txnlog_spark.sink.task",
    "txnlog_spark.sink.writers",
)
REQUEST_BYTES_MAX = 1 << 20


class WarmPython:
    """The process that forks, and the command that asks it to."""

    def __init__(self, folder: Path) -> None:
        from support.apache_kafka import die_with_parent
        from support.probe import wait_until

        self._socket = folder / "warm"
        self.command = folder / "python"
        self.command.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = -m ] && exec {sys.executable} -I -S {CLIENT} {self._socket} "$@"\n'
            f'exec {sys.executable} "$@"\n'
        )
        self.command.chmod(0o755)
        path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "support.warm_python", str(self._socket)],
            stdin=subprocess.DEVNULL,
            # As Spark sets it for its workers.
            env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
        )
        wait_until(self._socket.exists, "a Python that has imported", timeout_s=120)

    def stop(self) -> None:
        """End it; what it forked ends with those who asked for it."""
        self._process.kill()
        self._process.wait()


def serve(path: str) -> None:
    """Import, and fork for whoever asks, until killed."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become(connection)
        connection.close()


def _become(connection: socket.socket) -> None:
    """Run the module that is asked for, as the client's process would have; ends this process."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        data, streams = _received(connection)
        wanted = json.loads(data)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # When the client's process has gone, killed by Spark, so has this one.
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
        os.environ.clear()
        os.environ.update(wanted["environment"])
        os.chdir(wanted["folder"])
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [each for each in given if each and each not in sys.path]
        _stand_for(wanted["process"])
        _, module, *arguments = wanted["arguments"]
        sys.argv = [module, *arguments]
        sys.modules.pop(module, None)  # as main it runs anew
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _stand_for(client: int) -> None:
    """For the connector, which looks for Spark's JVM, this process is the client's child."""
    from txnlog_spark import processes

    this, by_the_system = os.getpid(), processes._name_and_parent
    processes._name_and_parent = lambda pid: (
        ("python", client) if pid == this else by_the_system(pid)
    )


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What `warm_client.py` sends: its streams with a length, then so many bytes of JSON."""
    streams = array.array("i")
    size, extra, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, _, sent in extra:
        streams.frombytes(sent)
    data = b""
    while len(data) < int.from_bytes(size, "big"):
        data += connection.recv(REQUEST_BYTES_MAX)
    return data, list(streams)


if __name__ == "__main__":
    serve(sys.argv[1])
