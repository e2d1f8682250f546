"""A batch write whose commit has no answer: nobody can ask later, so it is asked for at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commit_plans import record_batch
from support.scripted_broker import MALFORMED, NOT_SENT, Fault, ScriptedCluster

from txnlog_spark.client import admin
from txnlog_spark.errors import CommitStateUnknown
from txnlog_spark.protocol.values import CommitOutcome
from txnlog_spark.sink import committer
from txnlog_spark.sink.committer import commit_batch_write
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.sink.staging import StagedBatches, StagingWriter
from txnlog_spark.wire.messages import ApiKey as K

NOT_APPLIED = Fault(applied=False, retriable=False)
"""It arrived and was not carried out; the answer is no answer."""


class Host:
    """What `client_for` gives: operations run on the scripted cluster."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.session = cluster.session()
        self.run = cluster.run


@pytest.fixture(params=[1, 2])
def cluster(request, monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster(request.param)
    monkeypatch.setattr(committer, "client_for", lambda _connection: Host(made))
    monkeypatch.setattr(admin, "delete_group", lambda *_args, **_options: None)
    return made


def write(folder: Path) -> CommitOutcome | None:
    """Two rows as one batch write."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out", "stagingLocation": str(folder)}
    staging = StagingWriter(folder, "0-0", inline_bytes_max=1 << 20)
    staging.append("out", 0, [record_batch("a", "b")])
    chunks, inline, path = staging.finish()
    message = StagedBatches("w", "w", 0, 0, chunks, {"out": 2}, inline, path, 2)
    return commit_batch_write(read_sink_settings(options, streaming=False), [message], "w")


@pytest.mark.parametrize(("fault", "skipped"), [(MALFORMED, True), (NOT_APPLIED, False)])
def test_an_unknown_outcome_is_found_out_and_the_rows_are_there_once(
    cluster: ScriptedCluster, tmp_path: Path, fault: Fault, skipped: bool
) -> None:
    cluster.script(K.END_TXN, fault)
    outcome = write(tmp_path)
    assert outcome is not None
    assert outcome.skipped == skipped
    assert cluster.state.committed_values(("out", 0)) == [b"a", b"b"]


@pytest.mark.parametrize("fault", [MALFORMED, NOT_APPLIED])
def test_an_outcome_that_stays_unknown_says_where_to_look_before_writing_again(
    cluster: ScriptedCluster, tmp_path: Path, fault: Fault
) -> None:
    cluster.script(K.END_TXN, fault)
    down = {("S9", "before"): {K.INIT_PRODUCER_ID: NOT_SENT}}
    cluster.on_reached = lambda *place: cluster.always.update(down.get(place, {}))
    with pytest.raises(CommitStateUnknown, match=r"group 'txnlog-w\.progress\.w'") as caught:
        write(tmp_path)
    assert "Restart the query" not in str(caught.value)
