"""Forked process: becomes the interpreter that its client was started as."""

from __future__ import annotations

import array
import io
import os
import runpy
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Self

from txnlog_python.command import DEATH_SIGNALS, NUMBER_BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments, environment, ignored signals and stream descriptors of a client."""

    arguments: list[str]
    environment: dict[bytes, bytes]
    ignored: frozenset[int]
    streams: list[int]

    @classmethod
    def receive(cls, connection: socket.socket, bytes_max: int) -> Self:
        """Receive a request packed by `command.packed`. Raises OSError, ValueError."""
        streams = array.array("i")
        size, extra, _, _ = connection.recvmsg(
            NUMBER_BYTES, socket.CMSG_SPACE(3 * streams.itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for _, _, sent in extra:
            streams.frombytes(sent)
        wanted, data = int.from_bytes(size, "big"), bytearray()
        while len(data) < min(wanted, bytes_max):
            more = connection.recv(wanted - len(data))
            if not more:
                break
            data += more
        if len(data) != wanted or len(streams) != 3:
            for stream in streams:
                os.close(stream)
            raise ValueError("a request that is not whole")
        count, *parts = bytes(data).split(b"\0")
        arguments, (ignored, *variables) = parts[: int(count)], parts[int(count) :]
        return cls(
            [os.fsdecode(argument) for argument in arguments],
            {name: value for name, _, value in (each.partition(b"=") for each in variables)},
            frozenset(map(int, ignored.split(b","))) if ignored else frozenset(),
            list(streams),
        )

    def close_streams(self) -> None:
        """Close the descriptors, because the forked process has its own."""
        for stream in self.streams:
            os.close(stream)


def become(request: Request) -> None:
    """Take over the client's streams, signals and environment, and run its module as `python -m`
    does."""
    for number in DEATH_SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) in (usual, signal.SIG_IGN):  # no module has a handler
            signal.signal(number, signal.SIG_IGN if number in request.ignored else usual)
    for number, descriptor in enumerate(request.streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.reconfigure(line_buffering=True)
    os.environb.clear()
    os.environb.update(request.environment)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # Python's own `random` does so by itself
    _, module, *arguments = request.arguments
    sys.orig_argv = [sys.executable, *request.arguments]
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it becomes `__main__`
    runpy.run_module(module, run_name="__main__", alter_sys=True)
