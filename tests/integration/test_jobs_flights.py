"""The jobs on real data, small: what the main job computes, and load, run and audit end to end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from support.brokers.tls_kafka import PASSWORD, USER, tls_kafka, tls_sim
from support.clients.librdkafka import produce_values
from support.harness.availability import check_available

from broker_sim import LocalCluster
from jobs import audit, load_flights
from jobs.consume_transform_produce import enrich
from jobs.demo_processes import Narrator, SparkJob
from jobs.flights_data import FLIGHT_COUNT, read_airports, read_carriers, read_flights

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 3000


def flight(**changes: object) -> str:
    row = {"carrier": "UA", "origin": "EWR", "dest": "IAH", "dep_time": 517, "arr_delay": 0}
    return json.dumps({k: v for k, v in {**row, **changes}.items() if v is not None})


CLASSES = [
    (flight(arr_delay=-1), "early"),
    (flight(arr_delay=0), "on_time"),
    (flight(arr_delay=14), "on_time"),
    (flight(arr_delay=15), "late"),
    (flight(arr_delay=59), "late"),
    (flight(arr_delay=60), "very_late"),
    (flight(arr_delay=None), "diverted"),
    (flight(arr_delay=None, dep_time=None), "cancelled"),
    ("no flight", "unreadable"),
    ("{}", "unreadable"),
    (None, "unreadable"),
]


def test_every_record_gets_a_class_names_and_its_source_coordinates(
    connector_spark: SparkSession,
) -> None:
    rows = [(b"N1", v and v.encode(), "flights", 3, n) for n, (v, _) in enumerate(CLASSES)]
    spark = connector_spark
    records = spark.createDataFrame(
        rows, "key binary, value binary, topic string, partition int, offset long"
    ).withColumn("timestamp", sf.lit("2013-01-01 10:15:00 UTC").cast("timestamp"))
    carriers, airports = map(spark.createDataFrame, (read_carriers(), read_airports()))
    made = enrich(records, carriers, airports).collect()
    values = [json.loads(row["value"]) for row in made]
    assert [bytes(row["key"]) for row in made] == [b"N1"] * len(CLASSES)
    assert [value["delay_class"] for value in values] == [wanted for _, wanted in CLASSES]
    assert [value["source"] for value in values] == [
        {"topic": "flights", "partition": 3, "offset": n} for n in range(len(CLASSES))
    ]
    assert values[0]["carrier_name"] == "United Air Lines Inc."
    assert values[0]["origin_name"] == "Newark Liberty Intl"
    assert values[0]["dest_name"] == "George Bush Intercontinental"
    assert "carrier_name" not in values[-1]


def test_the_small_tables_have_no_repeated_key_that_would_double_a_flight() -> None:
    for table, key in ((read_carriers(), "carrier"), (read_airports(), "faa")):
        counts = Counter(table.column(key).to_pylist())
        assert max(counts.values()) == 1


def test_the_flights_are_all_there_and_cancelled_ones_have_no_departure() -> None:
    flights = read_flights()
    assert flights.num_rows == FLIGHT_COUNT
    assert flights.column("dep_time").null_count == 8255
    assert flights.column("tailnum").null_count == 2512


def submit(servers: str, folder: Path, name: str, *arguments: str) -> int:
    job = SparkJob(
        [f"jobs/{name}.py", "--bootstrap-servers", servers, *arguments],
        environment={},
        log=folder / f"{name}.log",
        narrator=Narrator(),
        shown_as=name,
    )
    try:
        return job.wait(240)
    finally:
        job.end()


def test_a_topic_that_has_records_is_not_loaded_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "data") as cluster:
        servers = cluster.bootstrap_servers
        args = load_flights.parse_args(["--bootstrap-servers", servers, "--topic", "flights"])
        assert not load_flights.has_records(args)
        produce_values(servers, "flights", ["one"])
        assert load_flights.has_records(args)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.usefixtures("quick_java")
def test_load_run_and_audit_over_a_real_broker(tmp_path: Path) -> None:
    topics = ("--input-topic", "flights", "--output-topic", "flights-enriched")
    with LocalCluster(tmp_path / "data", config={"num.partitions": "4"}) as cluster:
        servers = cluster.bootstrap_servers
        load = ("--topic", "flights", "--limit", str(LIMIT))
        assert submit(servers, tmp_path, "load_flights", *load) == 0
        run = (*topics, "--checkpoint", str(tmp_path / "checkpoint"), "--group-id", "g")
        more = ("--available-now", "--max-offsets-per-trigger", "1100")
        assert submit(servers, tmp_path, "consume_transform_produce", *run, *more) == 0
        out = tmp_path / "audit.json"
        proof = ["--bootstrap-servers", servers, *topics, "--group-id", "g", "--json", str(out)]
        assert audit.main(proof) == 0
        found = json.loads(out.read_text())
        assert found["input_records"] == found["output_committed"] == LIMIT
        assert found["transactions"]["committed"] >= 3
        # A second load leaves the topic as it is; nobody's offsets but the group's are wrong.
        args = load_flights.parse_args(["--bootstrap-servers", servers, *load])
        assert load_flights.has_records(args)
        assert audit.main([*proof[:-2], "--expect-aborted"]) == 1
        assert audit.main([*proof[:6], "--group-id", "nobody"]) == 1


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.kafka
@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("kind", [tls_sim, tls_kafka])
def test_load_run_and_audit_over_tls_and_scram_with_the_files_of_conf(tmp_path: Path, kind) -> None:
    check_available("apache_kafka")
    template = (ROOT / "conf" / "client-secured.properties").read_text()
    with kind(tmp_path / "cluster") as cluster:
        file = tmp_path / "client.properties"
        ca = str(cluster.security.ca_file)
        given = {"USER": USER, "PASSWORD": PASSWORD, "/etc/ssl/certs/ca-certificates.crt": ca}
        for name, value in given.items():
            assert template.count(name) == 1
            template = template.replace(name, value)
        file.write_text(template)
        servers, secured = cluster.security.address("SASL_SSL"), ("--command-config", str(file))
        topics = ("--input-topic", "flights", "--output-topic", "flights-enriched")
        load = ("--topic", "flights", "--limit", str(LIMIT), "--partitions", "3")
        assert submit(servers, tmp_path, "load_flights", *load, *secured) == 0
        run = (*topics, "--checkpoint", str(tmp_path / "checkpoint"), "--group-id", "g")
        assert (
            submit(
                servers, tmp_path, "consume_transform_produce", *run, "--available-now", *secured
            )
            == 0
        )
        proof = ["--bootstrap-servers", servers, *topics, "--group-id", "g", *secured]
        assert audit.main(proof) == 0
    logs = [path for path in tmp_path.rglob("*.log") if path.is_file()]
    assert logs
    assert not [path for path in logs if PASSWORD.encode() in path.read_bytes()]
