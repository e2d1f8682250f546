"""Two batches over a store that fails once, at each of its uses in turn: exactly once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.core.core_broker import CoreBroker
from support.query.commit_plans import record_batch, staged
from support.query.staged_pieces import served

from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.commit.query import QueryBatch, commit_query_batch
from txnlog_spark.errors import ProgressError
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage.local import LocalFiles
from txnlog_spark.storage.remote import StoreFailed

BATCHES = 2
SAID = "the store is said to be down"


class FailingFiles(LocalFiles):
    """Fails at its n-th use; a write with `carries_out` takes place nevertheless."""

    def __init__(self, fails_at: int, *, carries_out: bool) -> None:
        self.left, self.carries_out = fails_at, carries_out

    def read(self, path: str) -> bytes | None:
        self._use()
        return super().read(path)

    def list_folder(self, path: str) -> tuple[str, ...]:
        self._use()
        return super().list_folder(path)

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        if self.carries_out:
            super().write(path, data, durable=durable)
        self._use()
        super().write(path, data, durable=durable)

    def _use(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoreFailed(SAID)


class Query:
    """Spark's side: what is planned is committed, and again after a restart."""

    def __init__(self, folder: Path, cluster: CoreBroker, files: FailingFiles) -> None:
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text('{"id": "q"}')
        for n in range(BATCHES):
            source = json.dumps({"in": {"0": n + 1}, "txnlog/cluster.id/c": {}})
            (folder / "offsets" / str(n)).write_text(f"v1\n{{}}\n{source}")
        self.folder, self.cluster, self.files = folder, cluster, files

    def run(self, run_id: str, first: int) -> int:
        """Batches from `first` on; the one at which the run stopped."""
        session, disk = self.cluster.session(), CommitHost(self.files)
        for batch_id in range(first, BATCHES):
            rows = staged("out", 0, record_batch(f"row {batch_id}"))
            batch = QueryBatch(
                checkpoint=str(self.folder),
                location=str(self.folder),
                batch_id=batch_id,
                options=CommitOptions(group_id="g", topic="out"),
                staged=rows,
                run_id=run_id,
                query_id="q",
            )
            operation = served(commit_query_batch(session, batch))
            try:
                self.cluster.run(disk.serve(operation))
            except ProgressError as error:
                assert SAID in str(error)
                return batch_id
        return BATCHES


@pytest.mark.invariant(35, 37)
@pytest.mark.parametrize("carries_out", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_a_store_that_fails_at_any_use_costs_a_restart_and_nothing_else(
    tmp_path: Path, version: int, carries_out: bool
) -> None:
    stopped_at = []
    for fails_at in range(1, 100):
        cluster = CoreBroker(version)
        files = FailingFiles(fails_at, carries_out=carries_out)
        query = Query(tmp_path / str(fails_at), cluster, files)
        stopped = query.run("run-1", 0)
        if stopped < BATCHES:
            assert query.run("run-2", stopped) == BATCHES
        assert cluster.committed_values("out", 0) == [b"row 0", b"row 1"]
        stopped_at.append(stopped)
        if files.left > 0:
            break
    assert stopped_at.count(0) > 8
    assert stopped_at.count(1) > 5
    assert stopped_at[-1] == BATCHES
