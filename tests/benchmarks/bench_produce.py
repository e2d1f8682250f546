"""Measure what the staging server and the committer take for a megabyte of output.

    python tests/benchmarks/bench_produce.py [--tls] [--megabytes 43] [--batch-bytes 500000]

Record batches are staged in a staging server, as tasks on the driver's machine stage them, or with
`--tls` as tasks on other machines do. Then they are produced in a transaction to leaders that
acknowledge and discard everything, so no broker's cost is in the figures. The output is medians:
processor time of the staging server and of the committer, and the time on the clock.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
import uuid
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench_setup import TREE

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.cluster_view import ClusterView, TopicView
from txnlog_kafka.operations.produce import Produced, produce_staged
from txnlog_kafka.operations.producer import ProducePlan
from txnlog_kafka.operations.transaction import Transaction
from txnlog_kafka.wire.framing import decode_request, encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.staging.address import StagingSettings, ensure_server
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import StagingWriter, open_server_outlet

PARTITIONS = 6
VALUE_BYTES = 200
REQUEST_BYTES_MAX = 64 << 20


def swallow(ready: Connection) -> None:
    """A leader that acknowledges everything, for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    view = memoryview(bytearray(REQUEST_BYTES_MAX))
    while filled(connection, view[:4]):
        frame = view[: int.from_bytes(view[:4], "big")]
        filled(connection, frame)
        header, message = decode_request(bytes(frame))
        answer = ANSWERS[header.api_key](message)
        connection.sendall(
            encode_response(header.api_key, header.api_version, header.correlation_id, answer)
        )


def filled(connection: socket.socket, view: memoryview) -> bool:
    """Fill the view from the connection; False if the connection ends before."""
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def versions(_request: Any) -> Any:
    """Answer ApiVersions with every version that the client knows."""
    answer = APIS[ApiKey.API_VERSIONS].response
    return answer(
        api_keys=[
            answer.ApiVersion(api_key=key, min_version=api.version_min, max_version=api.version_max)
            for key, api in APIS.items()
        ]
    )


def acknowledged(request: Any) -> Any:
    """Answer that every partition of the request was appended."""
    answer = APIS[ApiKey.PRODUCE].response
    topic_type = answer.TopicProduceResponse
    return answer(
        responses=[
            topic_type(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    topic_type.PartitionProduceResponse(index=part.index)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


ANSWERS = {ApiKey.API_VERSIONS: versions, ApiKey.PRODUCE: acknowledged}


@dataclass(frozen=True)
class Round:
    """Cost of one transaction's output."""

    produced_bytes: int
    taken_s: float
    """The staging server's CPU, until all was staged."""
    given_s: float
    """The staging server's CPU, until all was produced."""
    committer_s: float
    clock_s: float


class Output:
    """A query's output: staged, produced, removed."""

    def __init__(self, megabytes: int, batch_bytes: int, *, is_local: bool) -> None:
        self._is_local = is_local
        self._settings = StagingSettings("127.0.0.1", 0, "127.0.0.1", None, None)
        self._server = ensure_server(self._settings)
        records = [
            Record(b"key-%012d" % number, os.urandom(VALUE_BYTES))
            for number in range(max(1, batch_bytes // (VALUE_BYTES + 16)))
        ]
        self._batch = encode_batch(records)
        self._batches = max(1, megabytes * 1_000_000 // len(self._batch))

    def play(self, client: Client, cluster: ClusterView, epoch: int) -> Round:
        """Stage, produce and remove the output of one transaction."""
        write = f"w{epoch}"
        reader = StagedReader(self._settings, None)
        before_s = staging_cpu_s()
        plan = ProducePlan(epoch, tuple(reader.plan([self._staged(write, epoch)])))
        client.session.cluster = cluster
        produced = Produced()
        operation = produce_staged(client.session, Transaction("t", 1, epoch, 2), plan, produced)
        staging_s, cpu_s, clock_s = staging_cpu_s(), time.process_time(), time.monotonic()
        client.run(CommitHost().serve(operation))
        found = Round(
            produced.bytes,
            staging_s - before_s,
            staging_cpu_s() - staging_s,
            time.process_time() - cpu_s,
            time.monotonic() - clock_s,
        )
        reader.remove_all(write)
        reader.close()
        return found

    def _staged(self, write: str, number: int) -> StagedBatches:
        attempt = TaskAttempt(write, number, f"run-{number}", uuid.uuid4().hex)
        writer = StagingWriter(
            lambda: open_server_outlet(self._server, attempt, host=None, is_local=self._is_local),
            inline_bytes_max=0,
        )
        for index in range(self._batches):
            writer.append("t", index % PARTITIONS, [self._batch])
        staged = writer.finish()
        return StagedBatches(attempt, "q", 0, staged.summary, {"t": PARTITIONS}, path=staged.path)


def staging_cpu_s() -> float:
    """Return the CPU seconds of this application's staging server so far."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if "txnlog_spark.staging.server" in command and int(fields[1]) == os.getpid():
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise SystemExit("there is no staging server")


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tls", action="store_true", help="as tasks on other machines stage")
    parser.add_argument("--megabytes", type=int, default=43, help="of one transaction's output")
    parser.add_argument("--batch-bytes", type=int, default=500_000, help="of a record batch")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    leader = context.Process(target=swallow, args=(theirs,), daemon=True)
    leader.start()
    port = ours.recv()
    topic = TopicView(bytes(16), dict.fromkeys(range(PARTITIONS), 0))
    cluster = ClusterView({0: ("127.0.0.1", port)}, {"t": topic})
    output = Output(args.megabytes, args.batch_bytes, is_local=not args.tls)
    with Client(f"127.0.0.1:{port}") as client:
        output.play(client, cluster, 0)
        rounds = [output.play(client, cluster, 1 + number) for number in range(args.rounds)]
    taken_s, given_s, committer_s, clock_s = (
        statistics.median(getattr(each, name) for each in rounds)
        for name in ("taken_s", "given_s", "committer_s", "clock_s")
    )
    megabytes = rounds[0].produced_bytes / 1e6
    print(f"tree {TREE}: {megabytes:.0f} MB in record batches of {args.batch_bytes:,} bytes")
    for name, seconds in (("staging server", taken_s), ("committer", committer_s)):
        print(
            f"{name:15}{1000 * seconds:5.0f} ms of CPU, {megabytes / seconds:,.0f} MB/s of a core"
        )
    print(f"staging server {1000 * given_s:5.0f} ms of CPU while the committer produces")
    print(f"produced in    {1000 * clock_s:5.0f} ms, {megabytes / clock_s:,.0f} MB/s")


if __name__ == "__main__":
    main()
