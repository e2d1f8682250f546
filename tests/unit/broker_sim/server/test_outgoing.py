"""Large answers: the bytes of one encoding, read from the files as the socket takes them."""

from __future__ import annotations

import pytest

from broker_sim.core.effects import (
    Append,
    Delete,
    FileSlice,
    RecordsField,
    Rename,
    Respond,
    Truncate,
)
from broker_sim.server.outgoing import WHOLE_BYTES_MAX, Outgoing
from broker_sim.server.storage import FileStorage
from txnlog_kafka.wire.framing import encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey

LOG = "orders-0/00000000000000000000.log"
DATA = bytes(range(256)) * 1024


@pytest.fixture
def storage(tmp_path):
    made = FileStorage(tmp_path)
    made.perform([Append(LOG, 0, DATA)])
    yield made
    made.close()


def fetch_answer(slices_of: list[list[FileSlice]], version: int) -> Respond:
    """A Fetch answer with one partition for each list of slices, b"" for an empty one."""
    response = APIS[ApiKey.FETCH].response
    topic = response.FetchableTopicResponse
    partitions = [
        topic.PartitionData(
            partition_index=index, high_watermark=9, last_stable_offset=9, log_start_offset=0,
            aborted_transactions=None, records=b"",
        )
        for index in range(len(slices_of))
    ]  # fmt: skip
    message = response(responses=[topic(topic="orders", topic_id=None, partitions=partitions)])
    fields = tuple(
        RecordsField(partition, tuple(slices))
        for partition, slices in zip(partitions, slices_of, strict=True)
        if slices
    )
    return Respond(1, 7, ApiKey.FETCH, version, message, fields)


def encoded_at_once(answer: Respond, storage: FileStorage) -> bytes:
    for field in answer.records:
        field.target.records = storage.read_slices(field.slices)
    return bytes(encode_response(ApiKey.FETCH, answer.api_version, 7, answer.message))


@pytest.mark.parametrize("version", [4, 11, 12, 16])
@pytest.mark.parametrize("piece_bytes", [1000, 1 << 20])
@pytest.mark.parametrize(
    "parts",
    [
        [[(0, 100)]],
        [[(0, WHOLE_BYTES_MAX + 1)]],
        [[(0, 70_000), (100, 5)], [], [(5, 0), (7, 200_000)], [(9, 126)], [(9, 127)]],
    ],
)
def test_the_bytes_are_those_of_one_encoding(storage, version, piece_bytes, parts):
    slices = [[FileSlice(LOG, *part) for part in each] for each in parts]
    expected = encoded_at_once(fetch_answer(slices, version), storage)
    out = Outgoing(fetch_answer(slices, version), storage)
    data = b""
    while piece := out.read(piece_bytes):
        assert len(piece) <= piece_bytes
        data += piece
    assert data == expected


@pytest.mark.parametrize(
    "change",
    [Delete("orders-0"), Delete(LOG), Rename("orders-0", "orders-0-delete"), Truncate(LOG, 90_000)],
    ids=lambda change: type(change).__name__,
)
def test_a_file_that_changes_while_it_is_sent_ends_the_answer(storage, change):
    out = Outgoing(fetch_answer([[FileSlice(LOG, 0, len(DATA))]], 12), storage)
    assert out.read(50_000)
    storage.perform([change, Append(LOG, 0 if change != Truncate(LOG, 90_000) else 90_000, DATA)])
    with pytest.raises(LookupError, match=LOG):
        for _ in range(10):
            out.read(50_000)


def test_appends_and_changes_of_other_files_do_not_disturb_an_answer(storage):
    out = Outgoing(fetch_answer([[FileSlice(LOG, 0, len(DATA))]], 12), storage)
    assert out.read(50_000)
    storage.perform([Append(LOG, len(DATA), b"more"), Delete("orders-01"), Delete("orders")])
    size = 0
    while piece := out.read(50_000):
        size += len(piece)
    assert size > len(DATA) - 50_000
