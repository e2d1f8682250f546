"""What `warm_python.warm_python` runs in the place of Python: it imports little, and starts soon.

`warm_client.py ADDRESS LOCK -m MODULE ...` has a forked process run the module with this process's
environment, folder and standard streams, and ends when that process has ended. The first one starts
the process that forks, as a child of its own: so all of them are below Spark's JVM.
"""

import array
import fcntl
import json
import os
import socket
import sys


def connected(address: str, lock_path: str) -> socket.socket:
    """A connection to the process that forks, which is started when there is none."""
    with open(lock_path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if connection.connect_ex(f"\0{address}") != 0:
            start(address)
            connection.connect(f"\0{address}")
        return connection


def start(address: str) -> None:
    """Start it; return when it listens."""
    tests = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    given = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((tests, os.path.dirname(tests), given)),
        "PYTHONHASHSEED": "0",  # as Spark sets it for its workers
    }
    command = [sys.executable, "-u", "-m", "support.spark.warm_python", address]
    listens, says = os.pipe()
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, says, 1),
    ]
    os.posix_spawn(sys.executable, command, environment, file_actions=streams)
    os.close(says)
    if not os.read(listens, 1):
        raise SystemExit("the process that forks has ended")
    os.close(listens)


def main() -> None:
    """Hand over, and wait for the end."""
    address, lock_path, *arguments = sys.argv[1:]
    wanted = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    data = json.dumps(wanted).encode()
    with connected(address, lock_path) as connection:
        streams = array.array("i", [0, 1, 2])
        connection.sendmsg(
            [len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
        )
        connection.sendall(data)
        for stream in (0, 1, 2):
            os.close(stream)
        connection.recv(1)


main()
