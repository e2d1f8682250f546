"""What `warm_python.WarmPython.command` runs: it imports little, and so starts at once.

`warm_client.py SOCKET -m MODULE ...` has a forked process run the module with this process's
environment, folder and standard streams, and ends when that process has ended.
"""

import array
import json
import os
import socket
import sys

wanted = {
    "arguments": sys.argv[2:],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "process": os.getpid(),
}
data = json.dumps(wanted).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.connect(sys.argv[1])
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg(
        [len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
    )
    connection.sendall(data)
    for stream in (0, 1, 2):
        os.close(stream)
    connection.recv(1)
