"""Proves or disproves exactly-once between an input and an output topic.

    spark-submit jobs/audit.py --bootstrap-servers localhost:9092 \
        --input-topic flights --output-topic flights-enriched --group-id flights-enricher

Reads the input under read_committed and the output under both isolation levels, and compares them
record by record; `jobs/audit_checks.py` has the checks and the names of the anomalies. Output
values are JSON with the coordinates of their input record:
`{"source": {"topic": ..., "partition": ..., "offset": ...}, ...}`.

Exit code: 0 exactly-once holds, 1 an anomaly was found, 2 the audit could not be carried out.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

# spark-submit puts this file's folder on the path, not the one that holds the package `jobs`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs import audit_checks as checks
from jobs.cluster_options import add_cluster_arguments, cluster_client
from jobs.topic_columns import LogColumns, TopicColumns, end_offsets, read_committed, read_log
from txnlog_kafka.host.client import Client
from txnlog_spark.errors import TxnLogError

_SOURCE_TYPE = pa.struct(
    [("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class Findings:
    """Records that the audit read and counted, and anomalies that it found."""

    input_records: int
    input_partitions: int
    output_committed: int
    output_uncommitted: int
    transactions: checks.TransactionCounts
    anomalies: list[checks.Anomaly]


def audit(client: Client, input_topic: str, output_topic: str, group_id: str | None) -> Findings:
    """Read both topics and check them. Without a group its offsets are not checked."""
    source = read_committed(client, input_topic)
    _say(f"read {len(source.offsets)} records of {input_topic} under read_committed")
    log = read_log(client, output_topic)
    _say(f"read {len(log.records.offsets)} records of {output_topic} under read_uncommitted")
    given = read_committed(client, output_topic)
    _say(f"read {len(given.offsets)} records of {output_topic} under read_committed")
    output = output_records(log, given, input_topic)
    ends = end_offsets(client, input_topic, read_committed=True)
    group = ends if group_id is None else _group_offsets(client, group_id, input_topic)
    return Findings(
        input_records=len(source.offsets),
        input_partitions=len(ends),
        output_committed=len(given.offsets),
        output_uncommitted=len(log.records.offsets),
        transactions=checks.count_transactions(output, log.markers),
        anomalies=checks.check_all(
            checks.InputRecords(source.partitions, source.offsets, source.keys),
            output,
            log.markers,
            group_offsets=group,
            input_end_offsets=ends,
        ),
    )


def output_records(log: LogColumns, given: TopicColumns, input_topic: str) -> checks.OutputRecords:
    """Return the log's records as the checks need them, marked if read_committed delivered them."""
    records = log.records
    places = checks.coordinates(records.partitions, records.offsets)
    delivered = np.isin(places, checks.coordinates(given.partitions, given.offsets))
    if int(delivered.sum()) != len(given.offsets):
        raise ValueError("read_committed delivered records that are not in the log, or twice")
    partitions, offsets = source_coordinates(records.values, input_topic)
    return checks.OutputRecords(
        partitions=records.partitions,
        offsets=records.offsets,
        keys=records.keys,
        source_partitions=partitions,
        source_offsets=offsets,
        producer_ids=log.producer_ids,
        producer_epochs=log.producer_epochs,
        decisions=log.decisions,
        delivered=delivered,
    )


def source_coordinates(values: pa.Array, topic: str) -> tuple[checks.Int64s, checks.Int64s]:
    """Return source partition and offset of each value; -1 without them, or for another topic."""
    source = _parse_sources(values)
    mine = pc.fill_null(pc.equal(pc.struct_field(source, "topic"), topic), False)
    columns = []
    for name in ("partition", "offset"):
        numbers = pc.fill_null(pc.if_else(mine, pc.struct_field(source, name), -1), -1)
        columns.append(numbers.to_numpy(zero_copy_only=False).astype(np.int64))
    return columns[0], columns[1]


def _parse_sources(values: pa.Array) -> pa.Array:
    """Return the field `source` of each JSON value; all at once if every value is one JSON line."""
    lines = [value or b"null" for value in values.to_pylist()]
    if lines:
        options = pj.ParseOptions(
            explicit_schema=pa.schema([("source", _SOURCE_TYPE)]),
            unexpected_field_behavior="ignore",
        )
        try:
            table = pj.read_json(pa.BufferReader(b"\n".join(lines)), parse_options=options)
        except pa.ArrowInvalid:
            table = None
        if table is not None and table.num_rows == len(lines):
            return table.column("source").combine_chunks()
    return pa.array([_parse_source(line) for line in lines], type=_SOURCE_TYPE)


def _parse_source(line: bytes) -> dict[str, object] | None:
    try:
        source = json.loads(line)["source"]
        return {
            "topic": str(source["topic"]),
            "partition": int(source["partition"]),
            "offset": int(source["offset"]),
        }
    except (ValueError, KeyError, TypeError):
        return None


def _group_offsets(client: Client, group_id: str, topic: str) -> dict[int, int]:
    committed = client.committed_offsets(group_id, require_stable=True)
    return {p: offset for (t, p), offset in sorted(committed.items()) if t == topic}


def report(findings: Findings, *, expect_aborted: bool) -> list[str]:
    """Print the findings; return the names of faults, [] if exactly-once is proven."""
    counts = findings.transactions
    attempts = findings.output_uncommitted - findings.output_committed
    _say(f"input: {findings.input_records} records in {findings.input_partitions} partitions")
    _say(
        f"output: {findings.output_committed} records under read_committed, "
        f"{attempts} more under read_uncommitted: the aborted attempts"
    )
    _say(
        f"transactions: {counts.committed} committed, {counts.aborted} aborted "
        f"({counts.fenced} of them fenced by a newer producer), {counts.undecided} undecided; "
        f"{counts.aborted_records} aborted records, {counts.markers} markers"
    )
    for anomaly in findings.anomalies:
        _say(f"ANOMALY {anomaly}")
    wrong = [anomaly.name for anomaly in findings.anomalies]
    if not findings.input_records:
        _say("VACUOUS the input has no records: there is nothing to prove")
        wrong.append("vacuous")
    if expect_aborted and not counts.aborted_records:
        _say("VACUOUS aborted attempts were expected, and the log has none")
        wrong.append("vacuous")
    result = "exactly-once holds" if not wrong else f"exactly-once is broken: {', '.join(wrong)}"
    _say(result)
    return wrong


def _say(text: str) -> None:
    print(f"audit: {text}", flush=True)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit with a usage line if it is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cluster_arguments(parser)
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--output-topic", required=True)
    parser.add_argument("--group-id", help="group whose offsets must be the end of the input")
    parser.add_argument(
        "--expect-aborted",
        action="store_true",
        help="fail too if the log shows no aborted attempt: the crashes missed",
    )
    parser.add_argument("--json", metavar="FILE", help="write the findings to FILE as well")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the audit; see the module for the exit code."""
    args = parse_args(argv)
    try:
        with cluster_client(args, "txnlog-audit") as client:
            findings = audit(client, args.input_topic, args.output_topic, args.group_id)
    except (TxnLogError, ValueError) as error:
        print(f"audit: could not be carried out: {error}", file=sys.stderr)
        return 2
    wrong = report(findings, expect_aborted=args.expect_aborted)
    if args.json:
        Path(args.json).write_text(json.dumps(asdict(findings), indent=2) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
