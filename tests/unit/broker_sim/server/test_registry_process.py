"""The registry as a process: READY, kill and restart, races, clean errors."""

from __future__ import annotations

import signal
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.brokers.registry_client import RegistryConnection, RegistryProcess
from support.raw.raw import Connection

from broker_sim.__main__ import EXIT_CANNOT_START, main
from broker_sim.apis import OWN_APIS, RegistryApiKey
from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    OperationType,
    RegistryError,
    registry_of_session,
    session_of_registry,
)
from broker_sim.registry.journal import changes_path
from txnlog_kafka.wire.messages import APIS, ApiKey

K = RegistryApiKey
TIMEOUT_MS = 40_000


@pytest.fixture
def registry(tmp_path):
    with RegistryProcess(tmp_path) as made:
        yield made


def open_session(connection: RegistryConnection) -> int:
    answer = connection.ask(K.REGISTRY_OPEN_SESSION, session_id=-1, timeout_ms=TIMEOUT_MS)
    assert answer.error_code == 0
    return answer.session_id


def create(connection: RegistryConnection, session_id: int, path: str, kind: OperationType) -> int:
    operation = OWN_APIS[K.REGISTRY_MULTI].request.Operation(
        type=kind, path=path, data=str(session_id).encode(), expected_version=-1
    )
    answer = connection.ask(K.REGISTRY_MULTI, session_id=session_id, operations=[operation])
    return answer.error_code


def nodes(connection: RegistryConnection) -> dict[str, bytes]:
    answer = connection.ask(K.REGISTRY_GET_NODES, session_id=-1, paths=[], prefix="/")
    return {each.path: each.data for each in answer.nodes}


def test_sessions_nodes_and_the_metadata_log_outlive_a_kill(registry):
    with RegistryConnection(registry.port) as connection:
        session_id = open_session(connection)
        create(connection, session_id, "/controller", OperationType.CREATE_EPHEMERAL)
        create(connection, session_id, CONTROLLER_EPOCH_PATH, OperationType.CREATE)
        append = {"session_id": session_id, "controller_epoch": 0, "expected_end_offset": 0}
        assert connection.ask(K.REGISTRY_APPEND, **append, records=[b"r"]).error_code == 0
        before = nodes(connection)
    registry.kill()
    registry.start()
    with RegistryConnection(registry.port) as connection:
        owner = str(session_id).encode()
        assert nodes(connection) == before == {"/controller": owner, CONTROLLER_EPOCH_PATH: owner}
        assert connection.ask(K.REGISTRY_HEARTBEAT, session_id=session_id).error_code == 0
        assert connection.ask(K.REGISTRY_APPEND, **append, records=[b"r"]).error_code == 0
        read = connection.ask(K.REGISTRY_READ, session_id=-1, from_offset=0, max_bytes=100)
        assert read.records == [b"r"]
        assert open_session(connection) == session_id + 1
    assert registry.stop() == 0


def test_a_session_that_asks_nothing_expires_and_its_node_goes_to_the_next(tmp_path):
    limits = ["--session-timeout-min-ms", "100", "--session-timeout-max-ms", "40000"]
    with (
        RegistryProcess(tmp_path, *limits) as registry,
        RegistryConnection(registry.port) as connection,
    ):
        kept = open_session(connection)
        silent = connection.ask(K.REGISTRY_OPEN_SESSION, session_id=-1, timeout_ms=1_000)
        assert silent.timeout_ms == 1_000
        create(connection, silent.session_id, "/controller", OperationType.CREATE_EPHEMERAL)
        # The node was there before this wait, unless the session has expired already.
        wait = {"session_id": kept, "zxid_seen": 3, "log_end_offset_seen": 0}
        connection.ask(K.REGISTRY_WAIT, **wait, max_wait_ms=TIMEOUT_MS)
        assert nodes(connection) == {}
        assert create(connection, kept, "/controller", OperationType.CREATE_EPHEMERAL) == 0


def test_of_clients_that_race_for_the_controller_one_wins_and_a_wait_tells_the_others(registry):
    count = 4

    def race(_: int) -> tuple[int, int, bytes]:
        with RegistryConnection(registry.port) as connection:
            session_id = open_session(connection)
            error = create(connection, session_id, "/controller", OperationType.CREATE_EPHEMERAL)
            seen = connection.ask(
                K.REGISTRY_WAIT, session_id=session_id, zxid_seen=0, log_end_offset_seen=0,
                max_wait_ms=TIMEOUT_MS,
            )  # fmt: skip
            assert seen.zxid > 0
            return session_id, error, nodes(connection)["/controller"]

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(race, range(count)))
    winners = [session_id for session_id, error, _ in found if error == 0]
    assert len(winners) == 1
    assert {data for _, _, data in found} == {str(winners[0]).encode()}
    others = {RegistryError(error) for _, error, _ in found if error}
    assert others == {RegistryError.NODE_EXISTS}


def test_a_wait_is_answered_by_what_another_connection_does(registry):
    with RegistryConnection(registry.port) as waiting, RegistryConnection(registry.port) as other:
        session_id = open_session(waiting)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(
                waiting.ask, K.REGISTRY_WAIT, session_id=session_id, zxid_seen=0,
                log_end_offset_seen=0, max_wait_ms=TIMEOUT_MS,
            )  # fmt: skip
            assert create(other, session_id, "/a", OperationType.CREATE) == 0
            assert answer.result().zxid == 2


def test_a_kafka_client_learns_what_is_answered_and_is_refused_anything_else(registry):
    with Connection(registry.port) as connection:
        request = APIS[ApiKey.API_VERSIONS].request(
            client_software_name="test", client_software_version="1"
        )
        keys = {each.api_key for each in connection.ask(request, 3).api_keys}
        assert keys == {18, *range(20000, 20010)}
        connection.send_bytes(struct.pack(">ihhihi", 14, 3, 1, 1, -1, -1))
        assert connection.closed_by_peer()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhi", 20003, 0, 1),
        struct.pack(">hhih", 20003, 1, 1, -1),
        struct.pack(">hhih", 20003, 0, 1, 9),
        struct.pack(">hhihq", 20003, 0, 1, -1, 1) + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hhih", 20008, 0, 1, -1),
    ],
)
def test_bytes_that_are_not_a_request_cost_their_connection_only(registry, frame):
    with Connection(registry.port) as connection:
        connection.send_bytes(struct.pack(">i", len(frame)) + frame)
        assert connection.closed_by_peer()
    with RegistryConnection(registry.port) as connection:
        session_id = open_session(connection)
        assert session_id == session_of_registry(registry_of_session(session_id), 1)


def test_a_damaged_file_is_named_with_its_position(registry, tmp_path: Path, capsys):
    with RegistryConnection(registry.port) as connection:
        open_session(connection)
        open_session(connection)
    registry.process.send_signal(signal.SIGTERM)
    assert registry.process.wait(60) == 0
    path = tmp_path / "registry" / changes_path(0)
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert main(["registry", "--data-dir", str(tmp_path), "--port", "0"]) == EXIT_CANNOT_START
    assert f"{path.name} is damaged at position 22" in capsys.readouterr().err


def test_a_second_registry_on_the_directory_and_a_wrong_port_are_refused(
    registry, tmp_path, capsys
):
    assert main(["registry", "--data-dir", str(tmp_path), "--port", "0"]) == EXIT_CANNOT_START
    assert "another registry is running on" in capsys.readouterr().err
    assert main(["registry", "--data-dir", str(tmp_path), "--port", "70000"]) == EXIT_CANNOT_START
    assert "--port 70000 is not between" in capsys.readouterr().err


def test_limits_of_session_timeouts_that_cross_are_refused(tmp_path, capsys):
    limits = ["--session-timeout-min-ms", "2000", "--session-timeout-max-ms", "1000"]
    arguments = ["registry", "--data-dir", str(tmp_path), "--port", "0", *limits]
    assert main(arguments) == EXIT_CANNOT_START
    error = capsys.readouterr().err
    assert "--session-timeout-min-ms 2000" in error
    assert error.count("\n") == 1
