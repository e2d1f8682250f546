"""The registry against a naive model: any requests, time, kills and losses of power."""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)
from support.core.registry_build import K, RegistryHost, error_of

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    NodeChange,
    OperationType,
    RegistryError,
)

T, E = OperationType, RegistryError
PATHS = ("/controller", "/brokers/0", "/brokers/1", CONTROLLER_EPOCH_PATH, "no-path")
OPERATIONS = st.builds(
    NodeChange,
    st.sampled_from(list(T)),
    st.sampled_from(PATHS),
    st.binary(max_size=40),
    st.integers(-1, 2),
)
RECORDS = st.lists(st.binary(max_size=40), min_size=1, max_size=3)


class _Refused(Exception):
    pass


class RegistryMachine(RuleBasedStateMachine):
    """Each rule asks the registry and the model, which is dictionaries and lists, alike."""

    session_ids = Bundle("session_ids")

    def __init__(self) -> None:
        super().__init__()
        self.host = RegistryHost()
        self.nodes: dict[str, tuple[bytes, int, int]] = {}
        self.sessions: dict[int, list[int]] = {}
        """Session id -> [timeout, when it was last heard of]."""
        self.records: list[tuple[int, bytes]] = []
        self.start = 0
        """Below it there is the snapshot only."""
        self.snapshot: list[bytes] = []
        self.given_ids: set[int] = set()

    @initialize(target=session_ids)
    def first_session(self) -> int:
        return self.open_session(9_000)

    @rule(target=session_ids, timeout_ms=st.integers(0, 10_000))
    def open_session(self, timeout_ms: int) -> int:
        answer = self.host.open(timeout_ms)
        assert error_of(answer) is E.NONE
        assert answer.session_id not in self.given_ids
        self.given_ids.add(answer.session_id)
        kept_ms = min(max(timeout_ms, 1_000), 9_000)
        assert answer.timeout_ms == kept_ms
        self.sessions[answer.session_id] = [kept_ms, self.host.monotonic_ms]
        return answer.session_id

    @rule(session_id=session_ids)
    def heartbeat(self, session_id: int) -> None:
        assert (self.host.heartbeat(session_id) is E.NONE) == self.touch(session_id)

    @rule(session_id=consumes(session_ids))
    def close(self, session_id: int) -> None:
        answer = self.host.call(K.REGISTRY_CLOSE_SESSION, session_id=session_id)
        assert (error_of(answer) is E.NONE) == self.touch(session_id)
        self.end(session_id)

    @rule(session_id=session_ids, operations=st.lists(OPERATIONS, min_size=1, max_size=4))
    def multi(self, session_id: int, operations: list[NodeChange]) -> None:
        done = len(self.host.operations)
        answer = self.host.multi(session_id, *operations)
        if not self.touch(session_id):
            assert error_of(answer) is E.SESSION_EXPIRED
            return
        nodes, versions, error = dict(self.nodes), [], E.NONE
        for operation in operations:
            try:
                versions.append(apply(nodes, operation, session_id))
            except _Refused as refused:
                (error,) = refused.args
                break
        errors = [E.NONE] * len(versions)
        if error is E.NONE:
            assert [each.node_version for each in answer.results] == versions
            self.nodes = nodes
        else:
            errors += [error, *[E.RUNTIME_INCONSISTENCY] * (len(operations) - len(versions) - 1)]
        assert (error_of(answer), [error_of(each) for each in answer.results]) == (error, errors)
        writes = error is E.NONE and any(each.type is not T.CHECK for each in operations)
        assert (len(self.host.operations) > done) == writes

    @rule(
        session_id=session_ids,
        records=RECORDS,
        epoch_off=st.sampled_from([0, 0, 0, 1, -1]),
        offset_off=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def append(
        self, session_id: int, records: list[bytes], epoch_off: int, offset_off: int
    ) -> None:
        present = self.nodes.get(CONTROLLER_EPOCH_PATH, (b"", -1, -1))[1]
        given = [(present + epoch_off, record) for record in records]
        self.append_at(session_id, len(self.records) + offset_off, given)

    @rule(session_id=session_ids, count=st.integers(1, 3), epoch_off=st.sampled_from([0, 0, 1]))
    def append_again(self, session_id: int, count: int, epoch_off: int) -> None:
        """The answer to the last append was lost, or another controller has the same records."""
        again = self.records[-count:]
        if again:
            given = [(again[0][0] + epoch_off, record) for _, record in again]
            self.append_at(session_id, len(self.records) - len(again), given)

    def append_at(self, session_id: int, offset: int, given: list[tuple[int, bytes]]) -> None:
        present = self.nodes.get(CONTROLLER_EPOCH_PATH, (b"", -1, -1))[1]
        epoch = given[0][0]
        answer = self.host.append(session_id, epoch, offset, *(record for _, record in given))
        error = error_of(answer)
        if not self.touch(session_id):
            assert error is E.SESSION_EXPIRED
            return
        if present < 0 or epoch != present:
            assert error is E.STALE_CONTROLLER_EPOCH
        elif offset == len(self.records):
            assert error is E.NONE
            self.records += given
        elif self.is_there(offset, given):
            assert error is E.NONE
        else:
            assert error is E.BAD_OFFSET
        assert answer.log_end_offset == len(self.records)

    def is_there(self, offset: int, given: list[tuple[int, bytes]]) -> bool:
        """Return True if the log has these records there; a snapshot leaves only the epochs to
        compare."""
        held = self.records[max(offset, 0) : offset + len(given)]
        if 0 <= offset < self.start:
            return len(held) == len(given) and held[0][0] == given[0][0]
        return offset >= 0 and held == given

    @rule(
        session_id=session_ids,
        records=RECORDS,
        epoch_off=st.sampled_from([0, 0, 0, -1]),
        share=st.sampled_from([0, 0.5, 1, 1.1]),
    )
    def write_snapshot(
        self, session_id: int, records: list[bytes], epoch_off: int, share: float
    ) -> None:
        present = self.nodes.get(CONTROLLER_EPOCH_PATH, (b"", -1, -1))[1]
        epoch, end_offset = present + epoch_off, int(len(self.records) * share)
        answer = self.host.write_snapshot(session_id, epoch, end_offset, 0, *records)
        if not self.touch(session_id):
            assert error_of(answer) is E.SESSION_EXPIRED
        elif present < 0 or epoch != present:
            assert error_of(answer) is E.STALE_CONTROLLER_EPOCH
        elif not self.start <= end_offset <= len(self.records):
            assert error_of(answer) is E.OFFSET_OUT_OF_RANGE
        else:
            assert error_of(answer) is E.NONE
            if end_offset > self.start:
                self.start, self.snapshot = end_offset, records

    @rule(by_ms=st.integers(1, 4_000))
    def time_goes_on(self, by_ms: int) -> None:
        self.host.advance(by_ms)
        now_ms = self.host.monotonic_ms
        for session_id, (timeout_ms, heard_ms) in list(self.sessions.items()):
            if now_ms - heard_ms >= timeout_ms:
                self.end(session_id)

    @rule(seed=st.one_of(st.none(), st.integers(0, 2**32)))
    def killed_and_started_again(self, seed: int | None) -> None:
        if seed is not None:
            assert self.host.disk.lose_power(random.Random(seed)) == 0
        self.host = self.host.restarted()
        for session in self.sessions.values():
            session[1] = 0

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        if not self.given_ids:
            return
        assert self.host.nodes() == self.nodes
        end = len(self.records)
        for offset in {0, self.start, end - 1, end} - {-1}:
            answer = self.host.read(offset)
            is_there = offset >= self.start
            assert error_of(answer) is (E.NONE if is_there else E.OFFSET_OUT_OF_RANGE)
            left = [record for _, record in self.records[offset:]] if is_there else []
            assert (answer.records, answer.log_start_offset) == (left, self.start)
            epoch = self.records[offset][0] if offset < end else -1
            assert (answer.record_epoch, answer.log_end_offset) == (epoch, end)
        assert self.host.read_snapshot().records == self.snapshot

    def touch(self, session_id: int) -> bool:
        if session_id not in self.sessions:
            return False
        self.sessions[session_id][1] = self.host.monotonic_ms
        return True

    def end(self, session_id: int) -> None:
        self.sessions.pop(session_id, None)
        self.nodes = {p: node for p, node in self.nodes.items() if node[2] != session_id}


def apply(nodes: dict[str, Any], operation: NodeChange, session_id: int) -> int:
    """Apply one operation by ZooKeeper's documentation; return the node's new version, or raise
    _Refused."""
    path, node = operation.path, copy.copy(nodes.get(operation.path))
    if not path.startswith("/"):
        raise _Refused(E.BAD_ARGUMENTS)
    if path == CONTROLLER_EPOCH_PATH and operation.type in (T.DELETE, T.CREATE_EPHEMERAL):
        raise _Refused(E.BAD_ARGUMENTS)
    if operation.type in (T.CREATE, T.CREATE_EPHEMERAL):
        if node is not None:
            raise _Refused(E.NODE_EXISTS)
        owner = session_id if operation.type is T.CREATE_EPHEMERAL else NO_SESSION
        nodes[path] = (operation.data, 0, owner)
        return 0
    if node is None:
        raise _Refused(E.NO_NODE)
    if operation.version not in (-1, node[1]):
        raise _Refused(E.BAD_VERSION)
    if operation.type is T.DELETE:
        del nodes[path]
    elif operation.type is T.SET:
        nodes[path] = (operation.data, node[1] + 1, node[2])
    return nodes[path][1] if path in nodes else -1


RegistryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestRegistryAgainstItsModel = RegistryMachine.TestCase
