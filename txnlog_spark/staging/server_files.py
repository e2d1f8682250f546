"""What the process that starts the staging server and the server itself both name."""

from __future__ import annotations

SOCKET_FILE = "socket"
START_FILE = "start.lock"
ALIVE_FILE = "alive.lock"
"""Locked by the server as long as it lives; holds its process id."""
LOG_FILE = "server.log"
BACKLOG = 1024
STAGED_SUFFIX = ".staged"
