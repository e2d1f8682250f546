"""Bytecode of modules in archives, kept for the next application.

Python keeps no bytecode of an archive's modules, and Spark gives its Python processes PySpark as an
archive: compiling it takes a server 0.6 s at each start.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import zipimport
from _blake2 import blake2b
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType

Found = tuple[CodeType, bool, str]
"""A module's code, whether it is a package, and its path."""
KEPT_PREFIX = "modules-"
"""Begin of a file's name in the folder of the sockets."""


@contextmanager
def kept_bytecode(folder: Path) -> Iterator[None]:
    """Compile a module of an archive if the folder has no bytecode of it, and keep that for later.

    An archive's bytecode is used as long as the archive has the same size and time of change, which
    is Python's rule for a module in a file.
    """
    archives: dict[str, Archive] = {}
    compiled = zipimport._get_module_code  # type: ignore[attr-defined]

    def found(importer: zipimport.zipimporter, name: str) -> Found:
        path = importer.archive
        if (archive := archives.get(path)) is None:
            archive = archives[path] = Archive(path, folder)
        if (module := archive.modules.get(name)) is None:
            module = archive.modules[name] = compiled(importer, name)
            archive.is_changed = True
        return module

    # Python asks twice for each module: for its file name, and for its code.
    zipimport._get_module_code = found  # type: ignore[attr-defined]
    try:
        yield
    finally:
        zipimport._get_module_code = compiled  # type: ignore[attr-defined]
    for archive in archives.values():
        archive.keep()


class Archive:
    """Bytecode of one archive's modules, by module name."""

    def __init__(self, path: str, folder: Path) -> None:
        found = Path(path).stat()
        python = (importlib.util.MAGIC_NUMBER, sys.flags.optimize)
        self._stamp = (path, found.st_mtime_ns, found.st_size, *python)
        name = blake2b(repr((path, *python)).encode(), digest_size=16).hexdigest()
        self._file = folder / f"{KEPT_PREFIX}{name}"
        self.modules: dict[str, Found] = {}
        self.is_changed = False
        # The first server with this archive finds no file, and after a loss of power perhaps a part
        # of it: `keep` writes it after the imports.
        with suppress(FileNotFoundError, EOFError, ValueError, TypeError):
            stamp, modules = marshal.loads(self._file.read_bytes())
            if stamp == self._stamp:
                self.modules = modules

    def keep(self) -> None:
        """Write the file, if there is new bytecode: a reader finds the old file or the new one."""
        if self.is_changed:
            written = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            written.write_bytes(marshal.dumps((self._stamp, self.modules)))
            written.replace(self._file)
