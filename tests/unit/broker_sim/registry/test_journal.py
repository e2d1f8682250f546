"""The registry's files: torn tails are truncated, damage refuses to start and says where."""

from __future__ import annotations

import copy

import pytest
from support.core.registry_build import RegistryHost

from broker_sim.apis.registry_codes import Node, NodeChange, OperationType
from broker_sim.core.effects import Append, Delete, Truncate, WriteFile
from broker_sim.registry.changes import NodesChanged, RecordsAppended, decode_change
from broker_sim.registry.journal import SNAPSHOT, RegistryDamaged, changes_path
from broker_sim.registry.registry_state import RegistryState
from simulation.hosts.disk import SimDisk

FIRST = changes_path(0)


def host_with(count: int) -> RegistryHost:
    """A registry that has carried out a session and so many nodes."""
    host = RegistryHost()
    session_id = host.open().session_id
    for number in range(count):
        host.multi(session_id, NodeChange(OperationType.CREATE, f"/{number}", b"x" * 20))
    return host


def contents(disk: SimDisk, path: str) -> bytes:
    return disk.read(path, 0, disk.size_bytes(path) or 0)


def with_file(disk: SimDisk, path: str, data: bytes) -> SimDisk:
    changed = copy.deepcopy(disk)
    changed.apply(WriteFile(path, data))
    return changed


def record_positions(host: RegistryHost) -> list[int]:
    return [op.position for op in host.operations if isinstance(op, Append) and op.path == FIRST]


def test_a_tail_torn_at_any_byte_is_truncated_and_the_changes_before_it_stay():
    host = host_with(3)
    data, last = contents(host.disk, FIRST), record_positions(host)[-1]
    for size in range(last, len(data)):
        disk = with_file(host.disk, FIRST, data[:size])
        again = RegistryHost(disk)
        assert set(again.nodes()) == {"/0", "/1"}
        assert disk.size_bytes(FIRST) == last
        assert any(isinstance(op, Truncate) for op in again.operations) == (size > last)


def test_a_changed_byte_before_the_last_record_refuses_to_start_with_path_and_position():
    host = host_with(3)
    data, positions = contents(host.disk, FIRST), record_positions(host)
    for at in range(positions[-1]):
        changed = bytearray(data)
        changed[at] ^= 0x55
        record = max(p for p in positions if p <= at)
        with pytest.raises(RegistryDamaged, match=f"{FIRST} is damaged at position {record}:"):
            RegistryHost(with_file(host.disk, FIRST, bytes(changed)))


def test_a_record_that_is_missing_in_the_middle_refuses_to_start():
    host = host_with(3)
    data, positions = contents(host.disk, FIRST), record_positions(host)
    shorter = data[: positions[2]] + data[positions[3] :]
    with pytest.raises(RegistryDamaged, match=f"at position {positions[2]}"):
        RegistryHost(with_file(host.disk, FIRST, shorter))


def test_what_was_written_before_the_metadata_log_had_snapshots_is_read():
    """The bytes are a journal of version 0, written by the code of that version."""
    nodes = "000002ffffffffffffffff000000000000000002052f6f6c640278000000070000000000000003000100"
    records = "000003ffffffffffffffff00000000000000040103026103626300"
    node = Node(b"x", 7, 3, 9)
    assert decode_change(bytes.fromhex(nodes), 9) == NodesChanged((("/old", node),))
    assert decode_change(bytes.fromhex(records), 1) == RecordsAppended(4, (b"a", b"bc"))
    snapshot = (
        "0000000000000000000300000000000000020000000000000002020000000000000001000013880002122f63"
        "6f6e74726f6c6c65725f65706f63680100000000ffffffffffffffff0000000000000002000200000000000000"
        "00000000000003026103626300"
    )
    state = RegistryState.decode(bytes.fromhex(snapshot))
    assert (state.zxid, state.log.records, state.log.epochs) == (3, [b"a", b"bc"], [(0, 0)])
    assert (state.log.start_offset, state.log.snapshot) == (0, ())


def test_a_snapshot_replaces_the_changes_before_it():
    host = host_with(40)
    paths = host.disk.list("")
    assert SNAPSHOT in paths
    assert len([path for path in paths if path.startswith("changes-")]) == 1
    assert FIRST not in paths
    assert host.restarted().nodes() == host.nodes()
    assert len(host.nodes()) == 40


def test_a_snapshot_grows_with_the_state_and_is_not_written_for_each_change():
    host = host_with(300)
    written = [len(op.data) for op in host.operations if isinstance(op, WriteFile)]
    assert 2 <= len(written) < 15
    assert sum(written) < 4 * (host.disk.size_bytes(SNAPSHOT) or 0)


@pytest.mark.parametrize("at", [0, 4, 100])
def test_a_changed_byte_of_the_snapshot_refuses_to_start(at):
    host = host_with(40)
    data = bytearray(contents(host.disk, SNAPSHOT))
    data[at] ^= 1
    with pytest.raises(RegistryDamaged, match=f"^{SNAPSHOT} is damaged"):
        RegistryHost(with_file(host.disk, SNAPSHOT, bytes(data)))


def test_a_file_that_is_missing_refuses_to_start():
    host = host_with(40)
    host.open()
    changes = next(path for path in host.disk.list("") if path.startswith("changes-"))
    for path in (SNAPSHOT, changes):
        disk = copy.deepcopy(host.disk)
        disk.apply(Delete(path))
        with pytest.raises(RegistryDamaged, match=f"^{path} is damaged"):
            RegistryHost(disk)


def test_files_of_others_in_the_directory_are_left_alone():
    disk = SimDisk()
    disk.apply(WriteFile(".lock", b""))
    disk.apply(WriteFile("changes-1.log", b"mine"))
    RegistryHost(disk)
    assert disk.list("") == (".lock", FIRST, "changes-1.log")
