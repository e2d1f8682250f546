"""The audit of `jobs/audit.py`, the one that people run, over a test's topics."""

from __future__ import annotations

from support.spark.spark_copy import CopyQuery

from jobs.audit import audit
from txnlog_kafka.host.client import Client


def check_audit(query: CopyQuery) -> None:
    """Fail when the audit finds an anomaly, or found nothing to audit."""
    with Client(query.bootstrap, client_id="audit") as client:
        findings = audit(client, query.source, query.target, query.group)
    assert findings.anomalies == []
    assert findings.input_records == findings.output_committed == query.produced
