"""Every system call of a workload fails once: nothing acknowledged is lost, nothing is half."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.core.broker_build import fetch_request, produce_request, request, struct
from support.core.failing_storage import FailingSystem, Gone, HostOnFiles
from support.raw.hostile import good_batch

from broker_sim.server import broker_server as host_module
from broker_sim.server import space as space_module
from broker_sim.server.system import StorageError, StorageFailed
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import decode_marker, decode_records, iter_batches

TRANSACTIONS = 4
TRIES = 400
PARTITIONS = (0, 1)
Fault = Callable[[int, str], OSError | int | None]


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def broken() -> OSError:
    return OSError(errno.EIO, "Input/output error")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Retry at once instead of waiting for free space."""
    monkeypatch.setattr(space_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(host_module, "RETRY_SECONDS", 0.0)


@dataclass
class Told:
    """Answers that the client received, and its requests without an answer."""

    committed: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)
    offset: int = -1
    offsets_tried: set[int] = field(default_factory=lambda: {-1})


class Client:
    """Transactions by hand, each tried until one attempt ends; a new epoch after any doubt."""

    def __init__(self) -> None:
        self.told = Told()
        self.broker: HostOnFiles | None = None
        self.attempts = 0
        self._ids = (-1, -1)

    async def _ask(self, message: Any, version: int) -> Any:
        assert self.broker is not None
        return await self.broker.ask(message, version)

    async def until_done(self, step: Callable[[], Any]) -> None:
        """Again until there is no error: the service goes on by itself when there is room."""
        for _ in range(TRIES):
            try:
                code = await step()
            except Gone:
                if self.broker is not None and self.broker.host.failed.done():
                    self.broker.host.failed.result()
                code = None
            if code == 0 or code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return
            await asyncio.sleep(0.0005)
        raise AssertionError(f"still {code} after {TRIES} tries")

    async def prepare(self) -> None:
        """A topic, both coordinators, a producer id."""
        await self.until_done(self._create)
        for key_type in (0, 1):
            await self.until_done(lambda key_type=key_type: self._find(key_type))
        await self.until_done(self._init)

    async def _create(self) -> int:
        message = request(ApiKey.CREATE_TOPICS, timeout_ms=1000, validate_only=False)
        message.topics = [struct(message, "CreatableTopic", name="orders", num_partitions=2,
                                 replication_factor=1, assignments=[], configs=[])]  # fmt: skip
        return (await self._ask(message, 5)).topics[0].error_code

    async def _find(self, key_type: int) -> int:
        message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["t"])
        return (await self._ask(message, 4)).coordinators[0].error_code

    async def _init(self) -> int:
        message = request(ApiKey.INIT_PRODUCER_ID, transactional_id="t",
                          transaction_timeout_ms=60_000, producer_id=-1,
                          producer_epoch=-1)  # fmt: skip
        answer = await self._ask(message, 4)
        self._ids = (answer.producer_id, answer.producer_epoch)
        self._sequence = 0
        return answer.error_code

    async def transaction(self, number: int) -> None:
        """Run a transaction that commits, or, for every third number, aborts."""
        await self.until_done(lambda: self._attempt(number))

    async def _attempt(self, number: int) -> int:
        self.attempts += 1
        value = f"{number}/{self.attempts}"
        commit = number % 3 != 2
        sent_end, code = False, -1
        try:
            code = await self._fill(value, self.attempts)
            if code == 0:
                sent_end, code = True, -1
                code = await self._end(commit=commit)
        finally:
            if sent_end and commit:
                (self.told.unknown if code else self.told.committed).add(value)
                self.told.offsets_tried.add(self.attempts)
            if code:
                await self._renew()
        if commit and code == 0:
            self.told.offset = self.attempts
        return code

    async def _renew(self) -> None:
        assert self.broker is not None
        if not self.broker.host.failed.done():
            await self.until_done(self._init)

    async def _fill(self, value: str, offset: int) -> int:
        ids = {"producer_id": self._ids[0], "producer_epoch": self._ids[1]}
        for partition in PARTITIONS:
            batch = good_batch(value, base_sequence=self._sequence, transactional=True, **ids)
            message = produce_request({("orders", partition): bytes(batch)}, -1, "t")
            answer = await self._ask(message, 12)
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                return code
        self._sequence += 1
        message = request(ApiKey.TXN_OFFSET_COMMIT, transactional_id="t", group_id="g",
                          member_id="", **ids)  # fmt: skip
        place = struct(message, "TxnOffsetCommitRequestPartition", partition_index=0,
                       committed_offset=offset)  # fmt: skip
        message.topics = [struct(message, "TxnOffsetCommitRequestTopic", name="orders",
                                 partitions=[place])]  # fmt: skip
        return (await self._ask(message, 5)).topics[0].partitions[0].error_code

    async def _end(self, *, commit: bool) -> int:
        message = request(ApiKey.END_TXN, transactional_id="t", producer_id=self._ids[0],
                          producer_epoch=self._ids[1], committed=commit)  # fmt: skip
        return (await self._ask(message, 3)).error_code

    async def plain(self, value: str) -> None:
        """A record outside of transactions, appended at least once."""

        async def produce() -> int:
            message = produce_request({("orders", 0): bytes(good_batch(value))})
            return (await self._ask(message, 9)).responses[0].partition_responses[0].error_code

        await self.until_done(produce)
        self.told.plain.add(value)


async def workload(client: Client) -> None:
    await client.prepare()
    for number in range(TRANSACTIONS):
        await client.transaction(number)
        await client.plain(f"plain {number}")


async def values_of(broker: HostOnFiles, partition: int) -> list[str]:
    """Return the values that a read_committed reader sees."""
    message = fetch_request("orders", partition=partition, max_wait_ms=0, committed=True)
    answer = (await broker.ask(message, 11)).responses[0].partitions[0]
    assert answer.error_code == 0
    aborted = sorted((a.first_offset, a.producer_id) for a in answer.aborted_transactions or [])
    values: list[str] = []
    dropping: set[int] = set()
    data = bytes(answer.records)
    for header, position in iter_batches(data):
        while aborted and aborted[0][0] <= header.last_offset:
            dropping.add(aborted.pop(0)[1])
        if header.is_control:
            dropping.discard(decode_marker(data, position, header).producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            values += [(r.value or b"").decode() for r in decode_records(data, position, header)]
    return values


async def check_told(broker: HostOnFiles, told: Told, *, with_plain: bool = True) -> None:
    """Check that every acknowledged transaction is there whole, and each other one whole or not at
    all."""
    seen = [await values_of(broker, partition) for partition in PARTITIONS]
    transactional = [[v for v in each if "/" in v] for each in seen]
    assert sorted(transactional[0]) == sorted(transactional[1]), "half a transaction"
    assert len(set(transactional[0])) == len(transactional[0]), "a transaction twice"
    assert told.committed <= set(transactional[0]) <= told.committed | told.unknown
    if with_plain:
        assert told.plain <= set(seen[0])
    message = request(ApiKey.OFFSET_FETCH, require_stable=False)
    message.groups = [struct(message, "OffsetFetchRequestGroup", group_id="g", topics=None)]
    answer = (await broker.ask(message, 8)).groups[0]
    committed = [p.committed_offset for topic in answer.topics for p in topic.partitions]
    assert (committed or [-1])[0] in told.offsets_tried
    assert (committed or [-1])[0] >= told.offset


async def live(root: Path, system: FailingSystem, client: Client) -> None:
    """The workload until it is done; raises StorageFailed when the disk did."""
    client.broker = HostOnFiles(root, system)
    try:
        await workload(client)
        await check_told(client.broker, client.told)
    finally:
        client.broker.die()


async def check_restarted(root: Path, client: Client, *, with_plain: bool = True) -> None:
    """A new process on what is left of the disk; then everything works again."""
    broker = HostOnFiles(root)
    client.broker = broker
    try:
        if client.told.committed or client.told.plain:
            await check_told(broker, client.told, with_plain=with_plain)
        await workload(client)
        await check_told(broker, client.told, with_plain=False)
    finally:
        broker.die()


def count_calls(root: Path, kinds: set[str] | None = None) -> list[int]:
    """The numbers of the workload's calls of these kinds."""
    system = FailingSystem(lambda _number, _call: None)
    asyncio.run(live(root, system, Client()))
    return [n for n, call in enumerate(system.log) if kinds is None or call in kinds]


def once(at: int, fault: OSError | int) -> Fault:
    return lambda number, _call: fault if number == at else None


EVERY = pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.chaos)])
"""Each call fails in `make chaos`, every twelfth, in `make test`."""


def sweep(
    tmp_path: Path, kinds: set[str] | None, step: int, run: Callable[[Path, int], None]
) -> None:
    (tmp_path / "count").mkdir()
    numbers = count_calls(tmp_path / "count", kinds)
    assert len(numbers) > 20
    for at in numbers[step // 2 :: step]:
        root = tmp_path / str(at)
        root.mkdir()
        try:
            run(root, at)
        except Exception as failure:
            raise AssertionError(f"the fault at call {at}: {failure!r}") from failure


ROOM = {"write", "create", "make folder"}


@EVERY
def test_no_room_once_at_every_call_costs_no_more_than_retries(tmp_path, step):
    def run(root: Path, at: int) -> None:
        client = Client()
        try:
            asyncio.run(live(root, FailingSystem(once(at, no_room())), client))
        except StorageError:
            assert client.broker is None, "only the first start may be refused"
        asyncio.run(check_restarted(root, client))

    sweep(tmp_path, ROOM, step, run)


@EVERY
def test_no_room_after_some_bytes_leaves_no_torn_batch(tmp_path, step):
    def run(root: Path, at: int) -> None:
        client = Client()

        def short(number: int, call: str) -> OSError | int | None:
            if number == at:
                return 7 + at % 80
            return no_room() if number == at + 1 and call == "write" else None

        try:
            asyncio.run(live(root, FailingSystem(short), client))
        except StorageError:
            assert client.broker is None, "only the first start may be refused"
        asyncio.run(check_restarted(root, client))

    sweep(tmp_path, {"write"}, step, run)


@EVERY
@pytest.mark.parametrize("power_loss", [False, True])
def test_a_failed_flush_ends_the_broker_and_what_was_told_is_there_afterwards(
    tmp_path, power_loss, step
):
    def run(root: Path, at: int) -> None:
        client = Client()
        system = FailingSystem(once(at, broken()))
        with pytest.raises(StorageFailed, match="fsync"):
            asyncio.run(live(root, system, client))
        if power_loss:
            system.lose_power(root)
        asyncio.run(check_restarted(root, client, with_plain=not power_loss))

    sweep(tmp_path, {"sync", "sync folder"}, step, run)


@EVERY
def test_a_broken_write_ends_the_broker_and_what_was_told_is_there_afterwards(tmp_path, step):
    def run(root: Path, at: int) -> None:
        client = Client()
        with pytest.raises(StorageFailed):
            asyncio.run(live(root, FailingSystem(once(at, broken())), client))
        asyncio.run(check_restarted(root, client))

    sweep(tmp_path, None, 2 * step, run)


@pytest.mark.parametrize("first", [90])
def test_a_disk_that_stays_full_says_no_and_goes_on_when_there_is_room(tmp_path, first):
    """The disk is full from one call on, for many tries; then it has space again."""

    async def scenario() -> None:
        full_until = [10**9]
        refused: list[int] = []

        def fault(number: int, call: str) -> OSError | None:
            if call not in ROOM or not first <= number < full_until[0]:
                return None
            refused.append(number)
            return no_room()

        system = FailingSystem(fault)
        client = Client()
        client.broker = HostOnFiles(tmp_path, system)
        working = asyncio.ensure_future(workload(client))
        while len(refused) < 10:
            assert not working.done()
            await asyncio.sleep(0)
        told = (set(client.told.committed), set(client.told.plain))
        for _ in range(100):
            await asyncio.sleep(0.0001)
        assert (set(client.told.committed), set(client.told.plain)) == told, "ok without room"
        full_until[0] = system.calls
        await working
        await check_told(client.broker, client.told)
        client.broker.die()

    asyncio.run(scenario())


def test_writes_stop_before_the_space_is_gone_and_go_on_with_the_same_connection(tmp_path):
    async def scenario() -> None:
        client = Client()
        client.broker = broker = HostOnFiles(tmp_path)
        await client.prepare()
        await client.transaction(0)
        connection = broker._transport.connection
        broker.free_bytes = 1000
        message = produce_request({("orders", 0): bytes(good_batch("x"))})
        answer = await broker.ask(message, 9)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        await check_told(broker, client.told)
        broker.free_bytes = 1 << 30
        await client.plain("y")
        assert broker._transport.connection is connection
        await check_told(broker, client.told)
        broker.die()

    asyncio.run(scenario())


def test_no_transaction_that_was_open_at_a_failed_flush_commits_what_is_left_of_it(tmp_path):
    """Its records were acknowledged and not flushed; the machine's boot is still the same."""

    async def scenario() -> None:
        armed: list[bool] = []
        system = FailingSystem(lambda _number, call: broken() if armed and call == "sync" else None)
        client = Client()
        client.broker = first = HostOnFiles(tmp_path, system)
        await client.prepare()
        assert await client._fill("torn", 1) == 0
        armed.append(True)
        with pytest.raises(Gone):
            await client._end(commit=True)
        with pytest.raises(StorageFailed, match="fsync"):
            first.host.failed.result()
        first.die()
        armed.clear()
        system.lose_power(tmp_path)
        client.broker = second = HostOnFiles(tmp_path)
        codes: list[int] = []
        while not codes or codes[-1] in (ErrorCode.CONCURRENT_TRANSACTIONS, 14, 15, 16):
            assert len(codes) < TRIES
            codes.append(await client._end(commit=True))
            await asyncio.sleep(0.0005)
        assert codes[-1] in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        await client.until_done(client._init)
        assert await values_of(second, 0) == []
        second.die()

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["start", "stop"])
def test_a_flush_that_fails_at_a_start_or_a_stop_forgets_the_boot_too(tmp_path, when):
    async def scenario() -> None:
        armed: list[bool] = []
        system = FailingSystem(lambda _number, call: broken() if armed and call == "sync" else None)
        client = Client()
        client.broker = broker = HostOnFiles(tmp_path, system)
        await client.prepare()
        assert await client._fill("torn", 1) == 0
        assert (tmp_path / "machine.boot").exists()
        armed.append(True)
        with pytest.raises(StorageFailed, match="fsync"):
            if when == "stop":
                broker.host.stop()
            else:
                broker.die()
                HostOnFiles(tmp_path, system)
        assert not (tmp_path / "machine.boot").exists()

    asyncio.run(scenario())
