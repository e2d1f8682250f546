"""The demo, with fewer flights: three kills, and an audit that finds nothing wrong.

`.ci/run` has `make demo` itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import demo
from jobs.demo_processes import BrokerProcess, DemoFailed, Narrator


@pytest.mark.chaos
@pytest.mark.usefixtures("quick_java")
def test_the_demo_survives_its_three_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    assert demo.main(["--dir", str(folder), "--limit", "6000"]) == 0
    told = capsys.readouterr().out
    assert told.count("the process was killed") == 2
    assert told.count("the broker was killed inside the transaction") == 1
    found = json.loads((folder / "audit.json").read_text())
    assert found["output_committed"] == found["input_records"] == 6000
    # One committed transaction a micro-batch: the replayed ones were skipped or aborted. The first
    # batch is empty: it keeps where the group was when the query began.
    batches = [p for p in (folder / "checkpoint" / "commits").iterdir() if p.name.isdigit()]
    assert found["transactions"]["committed"] == len(batches) - 1 >= demo.BATCH_COUNT
    assert found["transactions"]["aborted_records"] > 0


@pytest.mark.chaos
@pytest.mark.usefixtures("quick_java")
def test_the_demo_on_three_brokers_survives_the_kill_of_a_leader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    assert demo.main(["--dir", str(folder), "--limit", "3000", "--brokers", "3"]) == 0
    told = capsys.readouterr().out
    assert told.count("the process was killed") == 2
    assert told.count("was killed inside the transaction; the others go on without it") == 1
    assert told.count("is ready at") == 5  # the registry, three brokers, and the killed one again
    found = json.loads((folder / "audit.json").read_text())
    assert found["output_committed"] == found["input_records"] == 3000
    assert found["transactions"]["aborted_records"] > 0


@pytest.mark.parametrize("count", ["0", "2"])
def test_the_demo_refuses_too_few_brokers_for_its_replicas(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--brokers", count])
    assert "--brokers is 1, or at least 3" in capsys.readouterr().err


def test_the_demo_leaves_a_folder_alone_that_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep me")
    assert demo.main(["--dir", str(tmp_path)]) == 1
    assert mine.exists()
    assert "name another --dir" in capsys.readouterr().err


def test_a_broker_that_does_not_start_is_named_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "broker").write_text("a file where the data directory should be")
    broker = BrokerProcess(tmp_path / "broker", Narrator())
    with pytest.raises(DemoFailed, match=r"broker\.log"):
        broker.start()
    broker.kill()
