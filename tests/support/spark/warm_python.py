"""A Python that has already imported what Spark's Python processes import.

Spark starts a Python process for each source of each query, and two for each kind of planner: a
fifth of the processor time of such tests went into their imports. The command `warm_python` takes
the place of `python` in PYSPARK_PYTHON. The first one starts a process that imports once, and all
have it fork one that gets their arguments, environment and standard streams; they live as long as
that. So everything is below Spark's JVM, as ever. What is forked has no garbage to collect after
each task but its own (gc.freeze).

The demo, the README's first steps, Spark Connect, executors of their own and most of
`make chaos` have Spark's own way.
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
import sys
import traceback
import uuid
from pathlib import Path

from planted.arming import arm_if_asked
from support.brokers.processes import die_with_parent

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


def warm_python(folder: Path) -> str:
    """A command that takes the place of `python` for one Spark application, in a new folder."""
    if sys.platform != "linux":
        return sys.executable
    folder.mkdir(parents=True)
    command, arguments = folder / "python", f"{uuid.uuid4()} {folder / 'lock'}"
    command.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -m ] && exec {sys.executable} -I -S {CLIENT} {arguments} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    command.chmod(0o755)
    return str(command)


def serve(address: str) -> None:
    """Import, and fork for whoever asks; end with the process that started this one."""
    die_with_parent()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{address}")
    listener.listen(64)
    os.write(1, b"!")
    os.dup2(0, 1)
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
        _, module, *arguments = wanted["arguments"]
        sys.argv = [module, *arguments]
        arm_if_asked()
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
