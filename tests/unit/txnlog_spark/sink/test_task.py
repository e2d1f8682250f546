"""The task encoder: rows land where Kafka's client would put them, and bad rows say why."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner import murmur2
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)
from support.query.staged_messages import message_of, never

from txnlog_kafka.wire.records import Record, decode_records, iter_batches
from txnlog_spark.codec.record_headers import HEADERS_TYPE
from txnlog_spark.errors import OptionError, RecordRefused
from txnlog_spark.sink import task
from txnlog_spark.sink.columns import check_columns
from txnlog_spark.sink.settings import SinkSettings, read_sink_settings
from txnlog_spark.sink.task import TaskEncoder, lookup_counts
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import StagingWriter

HEADER = StructType().add("key", StringType()).add("value", BinaryType())
COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (StringType(), pa.string()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "headers": (ArrayType(HEADER), HEADERS_TYPE),
    "at": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "id": (LongType(), pa.int64()),
    "number": (IntegerType(), pa.int32()),
    "key_bytes": (BinaryType(), pa.binary()),
    "value_bytes": (BinaryType(), pa.binary()),
}
"""Types of the columns, in Spark and in Arrow."""
COUNTS = {"out": 4, "other": 2} | {f"t{n}": n % 3 + 1 for n in range(30)}


def settings(**options: str) -> SinkSettings:
    base = {"kafka.bootstrap.servers": "x:1", "checkpointLocation": "/cp"}
    return read_sink_settings(base | options, streaming=True)


def encode(
    columns: dict[str, list[Any]], batches: int = 1, **options: str
) -> tuple[dict[tuple[str, int], list[Record]], TaskEncoder]:
    rows = pa.RecordBatch.from_arrays(
        [pa.array(values, COLUMNS[name][1]) for name, values in columns.items()], list(columns)
    )
    return encode_batches([rows] * batches, list(columns), **options)


def encode_batches(
    batches: list[pa.RecordBatch], columns: list[str], **options: str
) -> tuple[dict[tuple[str, int], list[Record]], TaskEncoder]:
    schema = StructType()
    for name in columns:
        schema = schema.add(name, COLUMNS[name][0])
    chosen = settings(**({} if "topic" in columns else {"topic": "out"}) | options)
    staging = StagingWriter(never, inline_bytes_max=1 << 20)
    encoder = TaskEncoder(
        chosen, check_columns(schema, chosen), lookup_counts({}, COUNTS.__getitem__), staging, 5
    )
    encoder.encode_all(iter(batches))
    message = message_of(TaskAttempt("q", 0, "r", "0-0"), staging, encoder.partition_counts)
    reader = StagedReader(chosen.staging, None)
    found = {}
    for chunk in reader.plan([message]):
        data = chunk.read()
        found.setdefault((chunk.topic, chunk.partition), []).extend(
            record
            for header, at in iter_batches(data)
            for record in decode_records(data, at, header)
        )
    return found, encoder


def test_a_key_lands_where_kafkas_own_partitioner_puts_it() -> None:
    keys = [f"key-{i}".encode() for i in range(50)]
    found, encoder = encode({"key": keys, "value": [str(i) for i in range(50)]})
    for (_, partition), records in found.items():
        for record in records:
            assert (murmur2(record.key) & 0x7FFFFFFF) % 4 == partition
    assert sum(map(len, found.values())) == encoder.record_count == 50
    assert encoder.partition_counts == {"out": 4}


def test_rows_of_one_partition_keep_their_order() -> None:
    values = [str(i) for i in range(30)]
    found, _ = encode({"key": [b"same"] * 30, "value": values})
    (records,) = found.values()
    assert [r.value.decode() for r in records if r.value is not None] == values


def test_rows_without_a_key_stick_to_one_partition_of_a_block() -> None:
    found, _ = encode({"value": ["a", "b", None]})
    assert [len(records) for records in found.values()] == [3]
    assert list(found) == [("out", 1)]


def test_the_columns_topic_and_partition_decide_where_they_are_set() -> None:
    columns = {
        "topic": ["out", "other", "out", "other"],
        "partition": [3, None, 0, 1],
        "value": ["a", "b", "c", "d"],
    }
    found, encoder = encode(columns)
    assert {p: [r.value for r in records] for p, records in found.items()} == {
        ("other", 1): [b"b", b"d"],
        ("out", 0): [b"c"],
        ("out", 3): [b"a"],
    }
    assert encoder.partition_counts == {"out": 4, "other": 2}


def test_the_option_topic_wins_over_the_column() -> None:
    found, _ = encode({"topic": [None], "value": ["a"]}, topic="other")
    assert [topic for topic, _ in found] == ["other"]


OF_VALUE = {"value.format": "string"}
OF_COLUMNS = {"value.format": "json", "value.columns": "id"}


@pytest.mark.parametrize("options", [OF_VALUE, OF_COLUMNS], ids=["value", "columns"])
def test_a_row_with_the_bytes_of_a_malformed_value_is_refused_where_it_is_no_dead_letter(
    options: dict[str, str],
) -> None:
    columns = {"id": [1, 2, 3], "value": ["a", None, "c"], "value_bytes": [b"x", b"{", None]}
    with pytest.raises(OptionError) as caught:
        encode(columns, **options)
    assert "option column value_bytes: 2 rows are malformed" in caught.value.text
    columns["value_bytes"] = [None] * 3
    assert encode(columns, **options)[0]


def test_a_write_without_formats_leaves_a_column_of_ones_own_out_whatever_its_name() -> None:
    for name in ("value_bytes", "key_bytes"):
        found, _ = encode({"value": ["a"], name: [b"x"]})
        (records,) = found.values()
        assert [(record.key, record.value) for record in records] == [(None, b"a")]


def test_headers_and_timestamps_are_carried() -> None:
    headers = [[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None]
    found, _ = encode(
        {"value": ["a", "b"], "headers": headers, "at": [1_234_567_891, None]}, timestampColumn="at"
    )
    (records,) = found.values()
    assert records[0].headers == (("h", b"1"), ("n", None))
    assert records[1].headers == ()
    assert records[0].timestamp == 1_234_567
    assert records[1].timestamp > 1_700_000_000_000


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (b"\xff", "\ufffd"),
        (b"gr\xfc\xdfe", "gr\ufffd\ufffde"),
        (b"cut\xe2\x82", "cut\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
    ],
)
def test_a_header_key_that_is_not_utf8_is_written_as_java_reads_it(key: bytes, read: str) -> None:
    """`CAST(bytes AS STRING)` checks nothing; a client in Python cannot read such a key."""
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([key]).buffers())
    header = pa.StructArray.from_arrays([text, pa.array([b"1"])], names=["key", "value"])
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.ListArray.from_arrays([0, 1], header).cast(HEADERS_TYPE)],
        ["value", "headers"],
    )
    (records,) = encode_batches([rows], ["value", "headers"])[0].values()
    assert records[0].headers == ((read, b"1"),)


def test_a_time_before_1970_is_refused_since_kafka_has_no_such_timestamp() -> None:
    with pytest.raises(OptionError, match="is -1 ms after 1970") as caught:
        encode({"value": ["a", "b"], "at": [5_000, -1]}, timestampColumn="at")
    assert caught.value.name == "timestampColumn"


def test_many_small_arrow_batches_become_one_record_batch() -> None:
    found, encoder = encode({"key": [b"k"], "value": ["v"]}, batches=100)
    assert encoder.record_count == 100
    assert [len(records) for records in found.values()] == [100]


@pytest.mark.parametrize("limit", [1, 50, 1000])
def test_large_arrow_batches_are_taken_in_slices_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    headers = [[{"key": f"h{n}", "value": b"x" * n}] for n in range(40)]
    columns = {
        "key": [None if n % 3 == 0 else b"key-%d" % (n % 7) for n in range(40)],
        "value": [str(n) for n in range(40)],
        "headers": headers,
        "partition": [None if n % 5 else n % 4 for n in range(40)],
    }
    monkeypatch.setattr(task, "GATHER_BYTES_MAX", limit)
    found, encoder = encode(columns)
    records = {r.value: r for part in found.values() for r in part}
    assert encoder.record_count == len(records) == 40
    for n in range(40):
        record = records[str(n).encode()]
        assert record.key == columns["key"][n]
        assert record.headers == ((f"h{n}", b"x" * n),)
    keyed = [[int(r.value or b"") for r in part if r.key == b"key-1"] for part in found.values()]
    assert all(numbers == sorted(numbers) for numbers in keyed)


def test_rows_of_many_partitions_are_gathered_longer_and_stay_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "GATHER_BYTES_MAX", 400)
    monkeypatch.setattr(task, "RECORD_BATCH_BYTES_WANTED", 400)
    monkeypatch.setitem(COUNTS, "out", 8)
    appended: Counter[int] = Counter()
    append = StagingWriter.append

    def counting(staging: StagingWriter, topic: str, partition: int, batches: Any) -> None:
        appended[partition] += 1
        append(staging, topic, partition, batches)

    monkeypatch.setattr(StagingWriter, "append", counting)
    columns = {"partition": list(range(8)) * 2, "value": [f"{n:020}" for n in range(16)]}
    blocks = {}
    for factor in (1, 4):
        monkeypatch.setattr(task, "GATHER_FACTOR_MAX", factor)
        appended.clear()
        found, encoder = encode(columns, batches=40)
        assert encoder.record_count == 16 * 40
        for (_, partition), records in found.items():
            assert [int(r.value or b"") for r in records] == [partition, partition + 8] * 40
        blocks[factor] = appended[0]
    # The first block, too: how many partitions the topic has is known before.
    assert blocks == {1: 40, 4: 10}


def test_rows_of_many_topics_are_encoded_together() -> None:
    topics = [f"t{n % 30}" for n in range(300)]
    keys = [None if n % 4 == 0 else b"key-%d" % n for n in range(300)]
    columns = {"topic": topics, "key": keys, "value": [str(n) for n in range(300)]}
    found, encoder = encode(columns)
    assert encoder.partition_counts == {f"t{n}": n % 3 + 1 for n in range(30)}
    assert {topic for topic, _ in found} == set(topics)
    seen = 0
    for (topic, partition), records in found.items():
        numbers = [int(r.value or b"") for r in records]
        assert numbers == sorted(numbers)
        for number, record in zip(numbers, records, strict=True):
            seen += 1
            count = COUNTS[topic]
            key = keys[number]
            expected = 5 % count if key is None else (murmur2(key) & 0x7FFFFFFF) % count
            assert (topics[number], expected) == (topic, partition)
            assert record.key == key
    assert seen == 300


def test_columns_that_are_not_written_take_no_room_in_a_block() -> None:
    schema = StructType().add("value", StringType()).add("other", StringType())
    chosen = settings(topic="out")
    staging = StagingWriter(never, inline_bytes_max=1 << 20)
    encoder = TaskEncoder(
        chosen, check_columns(schema, chosen), lookup_counts({}, COUNTS.__getitem__), staging, 0
    )
    rows = pa.RecordBatch.from_pydict({"value": ["a"], "other": ["x" * task.GATHER_BYTES_MAX]})
    encoder.encode_all(iter([rows] * 5))
    assert staging.finish().summary.record_count == 5


def test_no_rows_stage_nothing() -> None:
    found, encoder = encode({"value": []})
    assert found == {}
    assert encoder.record_count == 0


def test_a_null_topic_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(OptionError, match="1 rows have a null topic: fill the column"):
        encode({"topic": ["out", None], "value": ["a", "b"]})


LETTERS = {
    "topic": ["out", "other", "other", "other"],
    "key_bytes": [None, b"{k", None, b"{l"],
    "value_bytes": [None, b"v", b"{v", None],
}
WRITTEN = [(b"{k", b"v"), (None, b"{v"), (b"{l", None)]
"""Key and value of the dead letters among these rows: the last one was a tombstone."""


def written(found: dict[tuple[str, int], list[Record]], topic: str) -> set[Any]:
    return {(r.key, r.value) for at, records in found.items() if at[0] == topic for r in records}


@pytest.mark.parametrize(
    ("columns", "options", "right"),
    [
        ({"key": [b"k"] * 4, "value": ["v"] * 4}, {}, (b"k", b"v")),
        ({"value": ["v"] * 4}, {}, (None, b"v")),
        ({"number": [1] * 4}, {"value.format": "json", "value.columns": "number"}, None),
        (
            {"key": [b"k"] * 4, "number": [1] * 4},
            {"value.format": "json", "value.columns": "number"},
            (b"k", b'{"number":1}'),
        ),
        (
            {"number": [1] * 4, "value": ["v"] * 4},
            {"key.format": "json", "key.columns": "number", "value.format": "string"},
            (b'{"number":1}', b"v"),
        ),
    ],
)
def test_a_dead_letter_is_written_as_it_was_whatever_the_columns_have(
    columns: dict[str, list[Any]], options: dict[str, str], right: Any
) -> None:
    found, _ = encode(LETTERS | columns, **options)
    assert written(found, "other") == set(WRITTEN)
    assert written(found, "out") == {right or (None, b'{"number":1}')}


def test_right_rows_without_a_topic_are_told_of_dead_letters() -> None:
    rows = {"topic": [None, "other"], "value": ["v", None], "value_bytes": [None, b"{v"]}
    rows["key_bytes"] = [None, None]
    with pytest.raises(OptionError, match=r"1 rows have a null topic: fill the column with coal"):
        encode(rows)


def test_the_option_topic_is_refused_with_dead_letters_that_have_topics() -> None:
    rows = LETTERS | {"value": ["v"] * 4}
    with pytest.raises(OptionError, match=r"option topic='out': remove it: 3 rows are dead letter"):
        encode(rows, topic="out")
    found, _ = encode({name: rows[name] for name in rows if name != "topic"})
    assert written(found, "out") == {*WRITTEN, (None, b"v")}
    right = {name: values[:1] for name, values in rows.items()}
    assert written(encode(right, topic="other")[0], "other") == {(None, b"v")}


@pytest.mark.parametrize("partition", [4, -1])
def test_a_partition_that_does_not_exist_is_an_error(partition: int) -> None:
    with pytest.raises(OptionError, match="0 to 3: topic out has 4 partitions"):
        encode({"partition": [partition], "value": ["a"]})


@pytest.mark.parametrize("topics", [{}, {"topic": ["out", "other"]}], ids=["option", "column"])
def test_an_oversized_record_is_named_by_its_topic_and_key(topics: dict[str, list[str]]) -> None:
    rows = topics | {"key": [b"fine", b"poison"], "value": ["a", "x" * 5000]}
    with pytest.raises(RecordRefused, match="MESSAGE_TOO_LARGE") as caught:
        encode(rows, **{"kafka.max.request.size": "2048"})
    text = str(caught.value)
    assert f"for topic {'other' if topics else 'out'} with key b'poison'" in text
    assert "kafka.max.request.size=2048" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("columns", "named", "allowed"),
    [
        ({"key": BinaryType()}, "column value", "a string or binary column"),
        ({"value": LongType()}, "column value", "string or binary: cast it"),
        ({"value": StringType(), "key": LongType()}, "column key", "bigint"),
        ({"value": StringType(), "partition": LongType()}, "column partition", "int: cast it"),
        ({"value": StringType(), "headers": StringType()}, "column headers", "array<struct"),
        ({"value": StringType(), "topic": BinaryType()}, "column topic", "string: cast it"),
        ({"value": StringType(), "Key": BinaryType()}, "column Key", "rename it to key"),
        ({"value": StringType(), "TOPIC": StringType()}, "column TOPIC", "rename it to topic"),
        ({"value": StringType(), "Headers": LongType()}, "column Headers", "names of columns are"),
    ],
)
def test_a_wrong_column_is_named_with_what_is_allowed(
    columns: dict[str, Any], named: str, allowed: str
) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    with pytest.raises(OptionError) as caught:
        check_columns(schema, settings(topic="out"))
    assert caught.value.name == named
    assert allowed in str(caught.value)


def test_a_column_in_another_case_may_be_a_field_or_beside_the_exact_one() -> None:
    schema = StructType().add("value", StringType()).add("Value", LongType()).add("Key", LongType())
    exact = schema.add("key", StringType())
    assert check_columns(exact, settings(topic="out")).key is not None
    given = settings(topic="out", **{"value.format": "json", "value.columns": "*"})
    assert "Key" in check_columns(schema, given).value.fields


def test_a_write_without_any_topic_is_refused() -> None:
    with pytest.raises(OptionError, match="option topic: set it"):
        check_columns(StructType().add("value", StringType()), settings())


ID = [{"key": "__value_schema_id", "value": b"\0\0\0\0\7"}]
OTHER = [{"key": "__key_schema_id", "value": b""}, {"key": "x", "value": None}]


@pytest.mark.parametrize(
    ("side", "given"),
    [
        ("value", {"value.format": "string"}),
        ("value", {"value.format": "json", "value.columns": "number"}),
        ("key", {"key.format": "json", "key.columns": "number"}),
    ],
)
def test_a_schema_id_of_the_bytes_that_were_read_is_refused_beside_other_bytes(
    side: str, given: dict[str, str]
) -> None:
    name = f"__{side}_schema_id"
    rows = {"value": ["a", "b", "c"], "number": [1, 2, 3], "headers": [None, [], [OTHER[1]]]}
    found, _ = encode(rows, **given)
    assert sum(map(len, found.values())) == 3
    rows["headers"] = [None, [], [OTHER[1], {"key": name, "value": b""}]]
    wanted = rf"column headers='{name}'.* 1 rows have it.*h.key != '{name}'"
    with pytest.raises(OptionError, match=wanted):
        encode(rows, **given)


def test_a_schema_id_stays_where_the_bytes_do() -> None:
    columns = {"value": ["a", "b"], "headers": [ID, OTHER]}
    found, _ = encode(columns)
    assert sorted(len(r.headers) for records in found.values() for r in records) == [1, 2]
    letters = LETTERS | {"headers": [None, ID, ID, OTHER]}
    letters |= {"id": [1, None, None, None]}
    found, _ = encode(letters, **{"value.format": "json", "value.columns": "id"})
    assert written(found, "other") == set(WRITTEN)
