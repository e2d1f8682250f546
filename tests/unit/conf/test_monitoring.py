"""The dashboard and the alerts read metrics that the product exports, and say what they show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.operations.exported_metrics import labels_of, metrics_of, of_brokers, of_queries
from tidy.markdown import anchors_of
from tidy.tree import ROOT

DASHBOARD = json.loads((ROOT / "conf/grafana/txnlog.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROMETHEUS = ROOT / "conf" / "prometheus"
NOT_SHOWN = {
    "kafka_controller_kafkacontroller_globaltopiccount": "topics list has the names as well",
    "kafka_controller_kafkacontroller_globalpartitioncount": "as many on each broker as the "
    "partitions and leaders that are shown",
}
"""Exported metrics that no panel shows, with the reason."""
SCRAPED = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""


@pytest.fixture(scope="module")
def exported() -> dict[str, frozenset[str]]:
    return {**of_queries(), **of_brokers(), "up": frozenset()}


def expressions() -> Iterator[str]:
    """Yield the expressions of the dashboard's panels and variables."""
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            (metric, label) = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", variable["query"]["query"]
            ).groups()
            yield f"count by ({label}) ({metric})"


def rules() -> list[dict[str, Any]]:
    read = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in read["groups"] for rule in group["rules"]]


RULES = rules()


def unknown(expression: str, exported: dict[str, frozenset[str]]) -> set[str]:
    """Return metrics that are not exported, and labels that no metric of the expression has."""
    metrics = metrics_of(expression)
    labels = SCRAPED.union(*(exported.get(name, frozenset()) for name in metrics))
    return (metrics - exported.keys()) | (set(labels_of(expression)) - labels)


def test_the_dashboard_reads_what_is_exported(exported: dict[str, frozenset[str]]) -> None:
    found = {e: missing for e in expressions() if (missing := unknown(e, exported))}
    assert found == {}


def test_what_is_exported_is_on_the_dashboard_or_has_a_reason_not_to_be(
    exported: dict[str, frozenset[str]],
) -> None:
    shown = set().union(*map(metrics_of, expressions()))
    assert set(NOT_SHOWN) & shown == set()
    # When a counter began, by prometheus-client, is nothing to look at.
    counted = {name for name in exported if not name.endswith("_created")} - {"up"}
    assert counted - shown - set(NOT_SHOWN) == set()
    assert set(NOT_SHOWN) <= set(exported)


def test_the_alerts_read_what_is_exported(exported: dict[str, frozenset[str]]) -> None:
    found = {r["alert"]: missing for r in RULES if (missing := unknown(r["expr"], exported))}
    assert found == {}


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("rate(txnlog_gone_total[5m]) > 0", {"txnlog_gone_total"}),
        ('sum by (topic) (txnlog_input_rows_total{query=~"$query"})', {"topic"}),
        ('txnlog_input_rows_total{outcome="fenced"}', {"outcome"}),
        ("(up == 0) and on (job) (abs(1 - txnlog_input_rows_total) > 3)", set()),
        ('sum by (le) (rate(txnlog_commit_seconds_bucket{phase="a b"}[1m]))', set()),
    ],
)
def test_a_planted_name_that_nothing_exports_is_found(
    expression: str, missing: set[str], exported: dict[str, frozenset[str]]
) -> None:
    assert unknown(expression, exported) == missing


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    assert len(PANELS) > 10
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(titles) == len(set(titles))


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_urgent_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "page"}
    page, _, anchor = rule["annotations"]["page"].partition("#")
    assert anchor in anchors_of((ROOT / page).read_text(encoding="utf-8"))
    operating = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    assert f"`{rule['alert']}`" in operating


def test_every_alert_is_tried_with_figures_that_raise_it_and_with_some_that_do_not() -> None:
    tried = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    found = {
        (each["alertname"], bool(each["exp_alerts"]))
        for test in tried
        for each in test["alert_rule_test"]
    }
    assert found == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_the_jobs_that_alerts_name_are_scraped() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    scraped = {job["job_name"] for job in config["scrape_configs"]}
    named = {job for rule in RULES for job in re.findall(r'job="(\w+)"', rule["expr"])}
    assert named == scraped
