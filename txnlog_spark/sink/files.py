"""Files that are whole or absent: written beside, flushed, renamed, the directory flushed too."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data`; after a crash it holds the old bytes or the new ones.

    Without `durable` that holds for a crash of the process; after one of the machine the file may
    hold anything.
    """
    _make_directory(path.parent)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    beside.replace(path)
    if durable:
        flush_directory(path.parent)


def _make_directory(directory: Path) -> None:
    """Make it and those above it, each durably: a flushed file in a lost directory is lost."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    flush_directory(directory.parent)


def visible_files(folder: Path) -> tuple[str, ...]:
    """The names of the files in a folder, in order, but for what `write_atomically` has begun."""
    try:
        return tuple(
            sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
        )
    except FileNotFoundError:
        return ()


def flush_directory(directory: Path) -> None:
    """Make renames in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
