"""promtool takes the alerts, raises each by the figures written for it, and knows every query."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from support.harness.availability import available
from support.harness.debian import Program, promtool, run_promtool

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "conf" / "prometheus"


@pytest.fixture(scope="module")
def program() -> Program:
    return available(promtool)


def test_prometheus_takes_its_configuration_and_the_rules(program: Program) -> None:
    done = run_promtool(program, "check", "config", PROMETHEUS / "prometheus.yml")
    assert done.returncode == 0, done.stdout
    assert re.search(r"SUCCESS: \d\d rules found", done.stdout)


def test_each_alert_comes_when_it_should_and_not_otherwise(program: Program) -> None:
    done = run_promtool(program, "test", "rules", PROMETHEUS / "alerts_test.yml")
    assert done.returncode == 0, done.stdout


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("right", "planted", "alert"),
    [
        ('outcome="fenced"', 'outcome="unknown"', "TxnlogProducerFenced"),
        ("[5m:1m]) == 0", "[5m:1m]) >= 0", "BrokerTransactionHangs"),
        (" > 900", " > 9e9", "TxnlogQueryBehind"),
    ],
)
def test_a_planted_mistake_in_an_alert_is_found(
    program: Program, tmp_path: Path, right: str, planted: str, alert: str
) -> None:
    alerts = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    (found,) = [rule for rule in rules if right in rule["expr"]]
    assert found["alert"] == alert
    found["expr"] = found["expr"].replace(right, planted)
    (tmp_path / "alerts.yml").write_text(json.dumps(alerts), encoding="utf-8")
    shutil.copy(PROMETHEUS / "alerts_test.yml", tmp_path)
    done = run_promtool(program, "test", "rules", tmp_path / "alerts_test.yml")
    assert done.returncode != 0
    assert f"alertname: {alert}" in done.stdout


def test_every_query_of_the_dashboard_is_promql(program: Program, tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "conf/grafana/txnlog.json").read_text(encoding="utf-8"))
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    plain = [re.sub(r"\$__(rate_interval|range)\b", "5m", each) for each in queries]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(plain)]
    file = tmp_path / "queries.json"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = run_promtool(program, "check", "rules", file)
    assert done.returncode == 0, done.stdout
    assert f"{len(queries)} rules found" in done.stdout
