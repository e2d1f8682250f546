"""`produce` and `consume`: lines to records and back, and what is refused before a broker is asked.

That they agree with Kafka's own console tools is seen in `tests/conformance/test_cli_console.py`.
"""

from __future__ import annotations

import pytest

from broker_sim.cli.arguments import UsageError
from broker_sim.cli.console import (
    FORMATTER_PROPERTIES,
    READER_PROPERTIES,
    LineReader,
    LineRefused,
    RecordFormatter,
    read_properties,
)
from broker_sim.cli.main import main
from broker_sim.cli.produce import _read_lines
from txnlog_kafka.wire.records import Record, encode_batch, parse_header

SERVER = ["--bootstrap-server", "127.0.0.1:1", "--topic", "t"]
KEYED = ("parse.key=true", "key.separator=:")
HEADED = (*KEYED, "parse.headers=true")


def record_of(line: bytes, *pairs: str) -> Record:
    properties = read_properties("--property", pairs, READER_PROPERTIES)
    return LineReader(properties).record(line, 7, 1000)


@pytest.mark.parametrize(
    ("line", "pairs", "key", "value", "headers"),
    [
        (b"hello", (), None, b"hello", ()),
        (b"", (), None, b"", ()),
        (b"k\thello", (), None, b"k\thello", ()),
        (b"k\thello", ("parse.key=true",), b"k", b"hello", ()),
        (b"k:a:b", KEYED, b"k", b"a:b", ()),
        (b":v", KEYED, b"", b"v", ()),
        (b"h:1,i:\tk:v", HEADED, b"k", b"v", (("h", b"1"), ("i", b""))),
        (b"k:\xff\x00", KEYED, b"k", b"\xff\x00", ()),
        (b"k:-", (*KEYED, "null.marker=-"), b"k", None, ()),
        (b"-:v", (*KEYED, "null.marker=-"), None, b"v", ()),
        (b"-\t-:-", (*HEADED, "null.marker=-"), None, None, ()),
        (b"h:-\tk:v", (*HEADED, "null.marker=-"), b"k", b"v", (("h", None),)),
        (b"bare", (*KEYED, "ignore.error=true"), None, b"bare", ()),
        (b"bare\tk:v", (*HEADED, "ignore.error=true"), b"k", b"v", (("bare", None),)),
    ],
)
def test_a_line_is_headers_key_and_value(line, pairs, key, value, headers):
    assert record_of(line, *pairs) == Record(key, value, 1000, headers)


@pytest.mark.parametrize(
    ("line", "pairs", "says"),
    [
        (b"bare", KEYED, r"no key\.separator \(':'\) in line 7: 'bare'"),
        (b"k:v", HEADED, r"no headers\.delimiter"),
        (b"h\tk:v", HEADED, r"no headers\.key\.separator \(':'\) in the header 'h' of line 7"),
    ],
)
def test_a_line_without_its_separator_is_named(line, pairs, says):
    with pytest.raises(LineRefused, match=says):
        record_of(line, *pairs)


FULL = Record(b"k", b"v", 1000, (("h", b"1"), ("i", None)), 5)
SHOWN = ("timestamp", "partition", "offset", "headers", "key")


@pytest.mark.parametrize(
    ("pairs", "record", "line"),
    [
        ((), FULL, b"v\n"),
        (("print.key=true", "key.separator= | "), FULL, b"k | v\n"),
        (
            tuple(f"print.{each}=true" for each in SHOWN),
            FULL,
            b"CreateTime:1000\tPartition:3\tOffset:5\th:1,i:null\tk\tv\n",
        ),
        (("print.headers=true",), Record(None, b"v"), b"NO_HEADERS\tv\n"),
        (("print.key=true", "null.literal=<none>"), Record(None, None), b"<none>\t<none>\n"),
        (("print.key=true", "print.value=false", "line.separator=;"), FULL, b"k;"),
        (("print.key=true",), Record(b"\xff", b"\x00"), b"\xff\t\x00\n"),
    ],
)
def test_a_record_is_printed_with_the_fields_that_are_asked_for(pairs, record, line):
    properties = read_properties("--property", pairs, FORMATTER_PROPERTIES)
    header = parse_header(encode_batch([record]))
    assert RecordFormatter(properties).line(3, header, record) == line


def test_the_time_of_the_broker_is_named_as_such():
    properties = read_properties("--property", ["print.timestamp=true"], FORMATTER_PROPERTIES)
    header = parse_header(encode_batch([FULL]))._replace(attributes=0x08)
    assert RecordFormatter(properties).line(0, header, FULL) == b"LogAppendTime:1000\tv\n"


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("parse.keys=true", "'parse.keys' is not known; did you mean parse.key?"),
        ("zzz=1", "there are parse.key, key.separator"),
        ("parse.key=maybe", "parse.key is true or false, not 'maybe'"),
        ("parse.key", "takes NAME=VALUE"),
    ],
)
def test_a_property_that_is_not_known_is_named_with_the_nearest(pair, says):
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        read_properties("--property", [pair], READER_PROPERTIES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--offset", "3"], "--offset needs --partition"),
        (["--offset", "3", "--partition", "0", "--from-beginning"], "excludes --from-beginning"),
        (["--offset", "soon", "--partition", "0"], "earliest, latest or a number, not 'soon'"),
        (["--property", "print.kye=true"], "did you mean print.key?"),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_a_broker_is_asked(words, says, capsys):
    assert main(["consume", *SERVER, *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["produce", "--topic", "t"],
        ["produce", *SERVER, "--path", "d"],
        ["consume", *SERVER, "--max-messages", "0"],
        ["consume", *SERVER, "--isolation-level", "serializable"],
        ["produce", "--bootstrap-server", "127.0.0.1:1"],
    ],
)
def test_wrong_options_of_the_console_end_with_code_2(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


class Chunks:
    """Standard input that gives these pieces, one a read."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def test_lines_are_given_on_as_they_come_in():
    lines = _read_lines(Chunks(b"a\nb", b"", b"never"))
    assert list(lines) == [[b"a"], [b"b"]]
    assert list(_read_lines(Chunks(b"a", b"b\r\n\nc", b"d"))) == [[b"ab", b""], [b"cd"]]
    assert list(_read_lines(Chunks())) == []
