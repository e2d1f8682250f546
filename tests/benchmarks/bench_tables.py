"""The tables of `make bench`, as Markdown: made of what it has measured, without measuring."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from floor import NAME as FLOOR

SINKS = ("kafka", "txnlog")
BY_TCP = " by TCP"
SAVED = Path(__file__).resolve().parents[2] / "docs" / "performance" / "bench.json"


def copy_table(results: dict[str, list[dict]]) -> str:
    """Medians with quartiles, and the ratio, as Markdown: above 1 ours is the faster one."""
    lines = [
        "| broker | partitions | rows a batch | kafka, ms | txnlog, ms | floor, ms "
        "| kafka : txnlog | kafka : floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for broker, found in results.items():
        for case in found:
            times = [case[f"{each}_ms"][case["warm_up"] :] for each in (*SINKS, FLOOR)]
            peer, ours, floor = (statistics.median(each) for each in times)
            shown = " | ".join(map(_with_quartiles, times))
            lines.append(
                f"| {broker} | {case['partitions']} | {case['rows']:,} | {shown} "
                f"| {peer / ours:.2f} | {peer / floor:.2f} |"
            )
    return "\n".join(lines)


def sink_table(results: dict[str, dict[str, list[float]]]) -> str:
    """The ratios, as Markdown."""
    lines = [
        "| broker | work | kafka, rows/s | txnlog, rows/s | txnlog : kafka | floor : kafka |",
        "|---|---|---|---|---|---|",
    ]
    for broker, found in results.items():
        for work in ("write", "read"):
            rates = {name: found[f"{work} {name}"] for name in (*SINKS, FLOOR)}
            peer, ours, floor = (rates[name] for name in (*SINKS, FLOOR))
            ratios = [_ratio(rate, peer) for rate in (ours, floor)]
            cells = [broker, work, _with_quartiles(peer), _with_quartiles(ours), *ratios]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(rates: list[float], peer: list[float]) -> str:
    """Return the ratio of the medians."""
    return f"{statistics.median(rates) / statistics.median(peer):.2f}"


def formats_table(results: dict[str, list[dict]]) -> str:
    """Medians and ratios, as Markdown: above 1 ours is the faster one."""
    lines = [
        "| broker | format | rows a batch | kafka, rows/s | txnlog, rows/s | txnlog : kafka "
        "| CPU a row, us: kafka | txnlog | a loop |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for broker, found in results.items():
        for case in found:
            rates = {
                each: 1000 * case["rows"] / statistics.median(case[each]["ms"][case["warm_up"] :])
                for each in SINKS
                if each in case
            }
            ours, peer = rates["txnlog"], rates.get("kafka")
            shown = ("not run",) * 3
            if peer is not None:
                shown = f"{peer:,.0f}", f"{ours / peer:.2f}", f"{case['kafka']['cpu_us']:.1f}"
            lines.append(
                f"| {broker} | {case['format']} | {case['rows']:,} | {shown[0]} | {ours:,.0f} "
                f"| {shown[1]} | {shown[2]} | {case['txnlog']['cpu_us']:.1f} "
                f"| {case['loop_cpu_us']:.1f} |"
            )
    return "\n".join(lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "copy": copy_table,
    "sink": sink_table,
    "formats": formats_table,
}
"""Tables of each work that `--work` names and this session has measured."""


def saved() -> dict[str, Any]:
    """Return the content of `SAVED`, by the name of the work; empty without the file."""
    return json.loads(SAVED.read_text()) if SAVED.exists() else {}


def table_of(work: str, results: dict[str, Any]) -> str:
    """The table of what one work has found, of each broker."""
    return TABLES[work.removesuffix(BY_TCP)](results)


def _with_quartiles(values: list[float]) -> str:
    """Median, and first to third quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:,.0f} ({low:,.0f} - {high:,.0f})"
