"""The registry's files: a snapshot, and the changes after it.

`changes-<zxid>.log` has the changes after the snapshot of that zxid (in 20 digits), or all of them
when it is 0: a header of `_HEADER`, then records of `_RECORD` and a change's bytes. The CRC-32C is
of the zxid and of those bytes. `snapshot` is a CRC-32C and the bytes of `RegistryState.encode`.

A snapshot is made in this order: the next file's header, flushed; the snapshot, in one rename; the
file before it is deleted. So after a crash the file that belongs to the snapshot is there, and what
belongs to none is a file before it, to be deleted, or one with a header alone, likewise. Anything
else is damage, and the registry does not start: it must not forget what it has answered.

A file may end in the middle of a record, which was not answered then: it is truncated. A record
that is wrong with a good one behind it is damage.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from crc32c_rs import crc32c

from broker_sim.core.effects import Append, Delete, Effects, Flush, Storage, Truncate, WriteFile
from broker_sim.registry.changes import Change, decode_change, encode_change
from broker_sim.registry.registry_state import RegistryState

SNAPSHOT = "snapshot"
_CHANGES = re.compile(r"changes-(\d{20})\.log")
_MAGIC = b"registry"
_HEADER = struct.Struct(">8shqI")
"""Magic, version 0, zxid of the snapshot, CRC-32C of what is before it."""
_RECORD = struct.Struct(">iIq")
"""Length of the change's bytes, CRC-32C, zxid."""
_CRC = struct.Struct(">I")
_ZXID = struct.Struct(">q")


class RegistryDamaged(Exception):
    """A file is not what was written; the text has its path and the position."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(f"{path} is damaged at position {position}: {what}")


class Journal:
    """Writes changes and snapshots, and reads them at a start. One writer."""

    def __init__(self, storage: Storage, bytes_max: int) -> None:
        """A snapshot is due beyond `bytes_max`."""
        self._storage = storage
        self._bytes_max = bytes_max
        self._path = changes_path(0)
        self._size_bytes = 0
        self._snapshot_bytes = 0

    # ------------------------------------------------------------------ writing

    def append(self, zxid: int, change: Change, effects: Effects) -> None:
        """Write and flush one change, which has this zxid."""
        data = encode_change(change)
        crc = crc32c(data, crc32c(_ZXID.pack(zxid)))
        record = _RECORD.pack(len(data), crc, zxid) + data
        effects.storage += [
            Append(self._path, self._size_bytes, record),
            Flush((self._path,)),
        ]
        self._size_bytes += len(record)

    def maybe_snapshot(self, state: RegistryState, effects: Effects) -> None:
        """Replace the changes by a snapshot when they are long."""
        if self._size_bytes <= max(self._bytes_max, self._snapshot_bytes):
            return
        before = self._path
        body = state.encode()
        self._begin(state.zxid, effects)
        effects.storage += [
            WriteFile(SNAPSHOT, _CRC.pack(crc32c(body)) + body),
            Delete(before),
        ]
        self._snapshot_bytes = len(body)
        effects.trace("registry-snapshot", zxid=state.zxid, size_bytes=len(body))

    def _begin(self, zxid: int, effects: Effects) -> None:
        header = _HEADER.pack(_MAGIC, 0, zxid, 0)[: -_CRC.size]
        header += _CRC.pack(crc32c(header))
        self._path = changes_path(zxid)
        self._size_bytes = len(header)
        effects.storage += [Append(self._path, 0, header), Flush((self._path,))]

    # ------------------------------------------------------------------ reading

    def recover(self, effects: Effects) -> RegistryState:
        """The state of the last change. Raises RegistryDamaged."""
        state = self._read_snapshot()
        path = changes_path(state.zxid)
        self._remove_others(path, state.zxid, effects)
        data = self._read(path)
        if len(data) < _HEADER.size and state.zxid == 0:
            if data:
                effects.storage.append(Truncate(path, 0))
            self._begin(0, effects)
            return state
        self._check_header(path, data, state.zxid)
        self._path, self._size_bytes = path, _HEADER.size
        for end, zxid, body in _records(path, data, state.zxid):
            try:
                change = decode_change(body, zxid)
            except ValueError as error:
                raise RegistryDamaged(path, self._size_bytes, str(error)) from error
            state.replay(zxid, change)
            self._size_bytes = end
        if self._size_bytes < len(data):
            effects.trace("registry-truncated", path=path, size_bytes=self._size_bytes)
            effects.storage.append(Truncate(path, self._size_bytes))
        # A killed process may have left changes that were not flushed: they are read from here on.
        effects.storage.append(Flush((path,)))
        return state

    def _read_snapshot(self) -> RegistryState:
        if self._storage.size_bytes(SNAPSHOT) is None:
            return RegistryState()
        data = self._read(SNAPSHOT)
        body = data[_CRC.size :]
        if len(data) < _CRC.size or _CRC.unpack_from(data)[0] != crc32c(body):
            raise RegistryDamaged(SNAPSHOT, 0, "its CRC is wrong")
        try:
            state = RegistryState.decode(body)
        except ValueError as error:
            raise RegistryDamaged(SNAPSHOT, 0, str(error)) from error
        self._snapshot_bytes = len(body)
        return state

    def _remove_others(self, own_path: str, zxid: int, effects: Effects) -> None:
        """Delete what a crash while a snapshot was made has left."""
        for path in self._storage.list(""):
            found = _CHANGES.fullmatch(path)
            if found is None or path == own_path:
                continue
            if int(found[1]) > zxid and (self._storage.size_bytes(path) or 0) > _HEADER.size:
                raise RegistryDamaged(
                    SNAPSHOT, 0, f"it is absent, or older than the changes in {path}"
                )
            effects.storage.append(Delete(path))

    def _check_header(self, path: str, data: bytes, zxid: int) -> None:
        if len(data) < _HEADER.size:
            raise RegistryDamaged(path, 0, "it is absent or has no header")
        magic, version, header_zxid, crc = _HEADER.unpack_from(data)
        if crc != crc32c(data[: _HEADER.size - _CRC.size]):
            raise RegistryDamaged(path, 0, "the CRC of its header is wrong")
        if (magic, version, header_zxid) != (_MAGIC, 0, zxid):
            raise RegistryDamaged(path, 0, f"version {version}, zxid {header_zxid} in its header")

    def _read(self, path: str) -> bytes:
        return self._storage.read(path, 0, self._storage.size_bytes(path) or 0)


def changes_path(zxid: int) -> str:
    """Return the path of the changes after a snapshot."""
    return f"changes-{zxid:020d}.log"


def _records(path: str, data: bytes, zxid: int) -> Iterator[tuple[int, int, bytes]]:
    """(end position, zxid, change's bytes) of each record. Raises RegistryDamaged."""
    position = _HEADER.size
    while position < len(data):
        end = _record_end(data, position, zxid + 1, zxid + 1)
        if end is None:
            _check_torn(path, data, position, zxid)
            return
        zxid += 1
        yield end, zxid, data[position + _RECORD.size : end]
        position = end


def _record_end(data: bytes, position: int, zxid_min: int, zxid_max: int) -> int | None:
    """The end of the good record at a position with such a zxid; None when there is none."""
    body = position + _RECORD.size
    if body > len(data):
        return None
    length, crc, zxid = _RECORD.unpack_from(data, position)
    if not zxid_min <= zxid <= zxid_max or not 0 <= length <= len(data) - body:
        return None
    expected = crc32c(data[body : body + length], crc32c(_ZXID.pack(zxid)))
    return body + length if crc == expected else None


def _check_torn(path: str, data: bytes, position: int, zxid: int) -> None:
    """Raise RegistryDamaged when a later change is anywhere from here on."""
    zxid_max = zxid + 1 + (len(data) - position) // _RECORD.size
    for later in range(position, len(data) - _RECORD.size + 1):
        if _record_end(data, later, zxid + 1, zxid_max) is not None:
            text = f"no record of zxid {zxid + 1}, and a later one at {later}"
            raise RegistryDamaged(path, position, text)
