"""`timeline`: transactions of simulated and of real brokers as SVG, looked at by a parser."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.clients.librdkafka import create_topic, transactional

from broker_sim import LocalCluster
from broker_sim.__main__ import main
from simulation.cli import run_seed

SVG = "{http://www.w3.org/2000/svg}"
JOB = "txnlog-job"


def listed(folder: Path, capsys) -> list[dict]:
    assert main(["timeline", str(folder), "--json"]) == 0
    found: list[dict] = json.loads(capsys.readouterr().out)
    return found


def events_of(folder: Path, transactional_id: str, number: int = -1) -> list[tuple[str, str]]:
    """(kind and outcome, lane) of each shape, from left to right, from top to bottom."""
    output = folder / "t.svg"
    assert main(["timeline", str(folder), "--transactional-id", transactional_id,
                 "--transaction", str(number), "--output", str(output)]) == 0  # fmt: skip
    shapes = []
    for group in ElementTree.parse(output).iter(f"{SVG}g"):
        look = group.get("class", "")
        if look.startswith("event "):
            text = next(group.iter(f"{SVG}text"))
            place = int(text.get("x")), int(text.get("y"))
            shapes.append((place, look.removeprefix("event "), group.get("data-lane")))
    return [(look, lane) for _, look, lane in sorted(shapes)]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_committed_transaction_of_a_run_has_its_steps_in_their_order(
    tmp_path: Path, capsys, seed: int
) -> None:
    run_seed(seed, "calm", save_logs=tmp_path)
    (folder,) = tmp_path.iterdir()
    found = [t for t in listed(folder, capsys) if t["transactional_id"] == JOB]
    assert len(found) >= 3
    with_data = 0
    for each in found:
        assert each["state"] == "CompleteCommit"
        events = events_of(folder, JOB, each["transaction"])
        kinds = [kind for kind, lane in events if lane != "producer" and kind != "request"]
        order = ["init", "begin", "data", "offsets", "decision commit", "marker commit",
                 "complete commit"]  # fmt: skip
        assert kinds == sorted(kinds, key=order.index)
        assert {"begin", "decision commit", "complete commit"} <= set(kinds)
        by_kind = defaultdict(set)
        for kind, lane in events:
            by_kind[kind].add(lane)
        assert by_kind["marker commit"] == by_kind["data"] | by_kind["offsets"]
        assert any(lane.startswith("group job.progress.") for lane in by_kind["offsets"])
        with_data += bool(by_kind["data"])
    assert with_data >= 2


def test_an_aborted_transaction_ends_with_markers_of_its_own_kind(tmp_path: Path, capsys) -> None:
    run_seed(1, "driver_dies_before_end", save_logs=tmp_path)
    (folder,) = tmp_path.iterdir()
    aborted = [t for t in listed(folder, capsys) if t["state"] == "CompleteAbort"]
    assert aborted
    for each in aborted:
        events = events_of(folder, each["transactional_id"], each["transaction"])
        kinds = {kind for kind, _ in events}
        assert {"decision abort", "marker abort", "complete abort"} <= kinds
        assert not any("commit" in kind for kind in kinds)


def test_a_transaction_that_is_open_has_no_end_and_readers_wait(tmp_path: Path, capsys) -> None:
    with LocalCluster(tmp_path / "data") as cluster:
        create_topic(cluster.bootstrap_servers, "orders", 2)
        producer = transactional(cluster.bootstrap_servers, "t <&> 1")
        producer.begin_transaction()
        producer.produce("orders", b"a", partition=0)
        producer.flush(10)
        producer.commit_transaction()
        producer.begin_transaction()
        for value in (b"b", b"c"):
            producer.produce("orders", value, partition=1)
            producer.flush(10)
        states = [(t["transaction"], t["state"]) for t in listed(cluster.data_dir, capsys)]
        assert states == [(0, "CompleteCommit"), (1, "Ongoing")]
        first = events_of(cluster.data_dir, "t <&> 1", 0)
        assert [lane for kind, lane in first if kind in ("data", "marker commit")] == [
            "orders-0"
        ] * 2
        events = events_of(cluster.data_dir, "t <&> 1")
        assert [e for e in events if e[1] != "producer"] == [
            ("begin", "coordinator"), ("data", "orders-1"),
        ]  # fmt: skip
        text = (cluster.data_dir / "t.svg").read_text()
        assert "offsets 0 to 1" in text
        assert "2 records" in text
        assert text.count('<line class="open" x1="') == 2, "a lane and the legend"
        producer.abort_transaction()


def test_what_is_not_there_is_said(tmp_path: Path, capsys) -> None:
    assert main(["timeline", str(tmp_path), "--transactional-id", "t"]) == 1
    assert "has 0 transactions of transactional id 't'" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "gone")]) == 1
    assert "gone: it is not a directory" in capsys.readouterr().err
    assert listed(tmp_path, capsys) == []


def test_of_a_cluster_the_next_coordinator_and_the_next_leader_have_lanes_of_their_own(
    tmp_path: Path, capsys
) -> None:
    run_seed(1, "coordinator_of_three_dies", save_logs=tmp_path)
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "broker-0", "broker-1", "broker-2", "metadata.jsonl",
    ]  # fmt: skip
    events = events_of(folder, JOB, 2)
    lanes = defaultdict(set)
    for kind, lane in events:
        lanes[kind].add(lane)
    assert all(" on broker " in lane for _, lane in events if lane != "producer")
    (begun,), (ended,) = lanes["begin"], lanes["complete commit"]
    assert begun != ended, "the coordinator that began it was killed"
    assert begun.startswith("coordinator on broker ")
    assert lanes["decision commit"] == {ended}
    # Where the leader is the same before and after, so is the lane.
    marked = {lane.rpartition(" on broker ")[0] for lane in lanes["marker commit"]}
    assert marked == {
        lane.rpartition(" on broker ")[0] for lane in lanes["data"] | lanes["offsets"]
    }
    assert lanes["marker commit"] - lanes["data"] - lanes["offsets"]
    states = [t["state"] for t in listed(folder, capsys) if t["transactional_id"] == JOB]
    assert states
    assert set(states) == {"CompleteCommit"}
    (folder / "metadata.jsonl").unlink()
    alone = {lane for _, lane in events_of(folder, JOB, 2)}
    assert {"producer", "coordinator"} <= alone
    assert not any(" on broker " in lane for lane in alone)
