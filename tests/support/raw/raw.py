"""Requests by hand: every field as the test wants it, answers as error names.

For what no well-behaved client does: wrong epochs, gaps in sequences, broken frames, and
transaction version 2, which neither librdkafka nor kafka-python speaks.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from support.brokers.probe import exchange, pause, read_exactly
from support.raw.requests import find_coordinator, produce_request, request

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey, api_of
from txnlog_kafka.wire.records import Record, encode_batch

TIMEOUT_S = 600.0
RETRY_S = 60.0
PAUSE_S = 0.05
RETRIABLE = {
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
    "NOT_LEADER_OR_FOLLOWER",
    "NOT_ENOUGH_REPLICAS",
}


def attempts(pause_s: float = PAUSE_S) -> Iterator[None]:
    """Yield once, and again with pauses until RETRY_S are over. The limit is a time: a count of
    tries with short pauses is over in a second, which a busy machine may take for one transaction's
    markers."""
    deadline = time.monotonic() + RETRY_S
    yield
    while time.monotonic() < deadline:
        pause(pause_s)
        yield


class Connection:
    """Connection to one broker. A context manager."""

    def __init__(self, port: int, client_id: str = "raw") -> None:
        self._client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._correlation_id = 0
        self.lost_answers = 0
        """Number of answers that were lost and whose requests were sent again: here a lost answer
        is an error."""
        self.has_kill = False
        """True if one of several brokers is killed meanwhile."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()

    def ask(self, message: Any, version: int) -> Any:
        self._correlation_id += 1
        framed = encode_request(message, version, self._correlation_id, self._client_id)
        answer = exchange(self.socket, framed[4:])
        (correlation_id,) = struct.unpack_from(">i", answer)
        assert correlation_id == self._correlation_id
        return decode_response(api_of(message), version, answer)

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def closed_by_peer(self) -> bool:
        """True if the broker closes the connection; False if it answers instead."""
        try:
            return read_exactly(self.socket, 1) is None
        except (EOFError, ConnectionError):
            return True


def message_class(key: ApiKey) -> Any:
    return APIS[key].request


@dataclass
class RawProducer:
    """A transactional or idempotent producer driven step by step; methods return error names."""

    connection: Connection
    transactional_id: str | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    last_offset: int = -1
    retries: bool = True
    pause_s: float = PAUSE_S

    def _retry(self, attempt) -> str:
        for _ in attempts(self.pause_s):
            error = attempt()
            if error not in RETRIABLE or not self.retries:
                break
        return error

    def _ask(self, message: Any, version: int, code_in: Callable[[Any], int]) -> str:
        """The error that `code_in` finds in the answer, once it is no reason to ask again."""
        return self._retry(lambda: error_name(code_in(self.connection.ask(message, version))))

    def _of_itself(self, key: ApiKey, **fields: Any) -> Any:
        """A request that names transactional id, producer id and epoch."""
        return request(
            key,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            **fields,
        )

    def _take(self, answer: Any) -> None:
        if (answer.producer_id, answer.producer_epoch) != self.identity:
            self.sequences = {}
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def find_coordinator(self, key: str | None = None, key_type: int = 1) -> str:
        message = find_coordinator(key_type, key or self.transactional_id or "")
        return self._ask(message, 4, lambda answer: answer.coordinators[0].error_code)

    def init(self, timeout_ms: int = 60_000, *, resume: bool = False) -> str:
        """InitProducerId; with `resume` it carries the current producer id and epoch (KIP-360)."""
        message = request(
            ApiKey.INIT_PRODUCER_ID,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if resume else -1,
            producer_epoch=self.producer_epoch if resume else -1,
        )

        def code_in(answer: Any) -> int:
            if answer.error_code == 0:
                self.sequences = {}
                self._take(answer)
            return answer.error_code

        return self._ask(message, 4, code_in)

    def add_partitions(self, topic: str, *partitions: int) -> str:
        """AddPartitionsToTxn, the clients' form; the first partition's error."""
        message = request(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[{"name": topic, "partitions": [*partitions]}],
        )

        def code_in(answer: Any) -> int:
            topic_result = answer.results_by_topic_v3_and_below[0]
            return topic_result.results_by_partition[0].partition_error_code

        return self._ask(message, 3, code_in)

    def batch(self, *values: str, sequence: int, transactional: bool | None = None) -> bytes:
        return encode_batch(
            [Record(None, value.encode(), 1_700_000_000_000) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=self.transactional_id is not None
            if transactional is None
            else transactional,
        )

    def produce(
        self, topic: str, partition: int, *values: str, sequence: int | None = None,
        version: int = 11,
    ) -> str:  # fmt: skip
        """Produce one batch; `version` 12 adds the partition to the transaction by itself."""
        place = (topic, partition)
        base = self.sequences.get(place, 0) if sequence is None else sequence
        error = self.produce_bytes(topic, partition, self.batch(*values, sequence=base), version)
        if error == "NONE":
            self.sequences[place] = base + len(values)
        return error

    def produce_bytes(
        self, topic: str, partition: int, records: bytes, version: int = 11, acks: int = -1
    ) -> str:
        """Produce these bytes; `last_offset` gets the answered base offset."""
        batches = {(topic, partition): records}
        message = produce_request(batches, acks, self.transactional_id, timeout_ms=10_000)

        def code_in(answer: Any) -> int:
            result = answer.responses[0].partition_responses[0]
            self.last_offset = result.base_offset
            return result.error_code

        return self._ask(message, version, code_in)

    def add_offsets(self, group: str) -> str:
        message = self._of_itself(ApiKey.ADD_OFFSETS_TO_TXN, group_id=group)
        return self._ask(message, 3, lambda answer: answer.error_code)

    def commit_offset(
        self, group: str, topic: str, partition: int, committed: int, *,
        metadata: str = "", version: int = 4, generation_id: int = -1, member_id: str = "",
        topic_id: uuid.UUID | None = None,
    ) -> str:  # fmt: skip
        """TxnOffsetCommit of one partition; version 5 adds the group by itself, 6 wants the
        topic's id."""
        place = {
            "partition_index": partition,
            "committed_offset": committed,
            "committed_metadata": metadata,
        }
        message = self._of_itself(
            ApiKey.TXN_OFFSET_COMMIT,
            group_id=group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            topics=[{"name": topic, "topic_id": topic_id, "partitions": [place]}],
        )
        return self._ask(message, version, lambda answer: answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool, version: int = 4) -> str:
        """EndTxn; version 5 takes the answered producer id and epoch over."""

        def code_in(answer: Any) -> int:
            if answer.error_code == 0 and version >= 5:
                self._take(answer)
            return answer.error_code

        return self._ask(self._of_itself(ApiKey.END_TXN, committed=commit), version, code_in)

    @property
    def identity(self) -> tuple[int, int]:
        """(producer id, producer epoch)"""
        return self.producer_id, self.producer_epoch


def fetch_offsets(
    connection: Connection, group: str, *, require_stable: bool = True
) -> tuple[str, dict[tuple[str, int], tuple[int, str]]]:
    """OffsetFetch of a whole group: (error name, (topic, partition) -> (offset, metadata))."""
    message = request(
        ApiKey.OFFSET_FETCH,
        groups=[{"group_id": group, "topics": None}],
        require_stable=require_stable,
    )
    for _ in attempts():
        answer = connection.ask(message, 8).groups[0]
        error = error_name(answer.error_code)
        if error not in RETRIABLE:
            break
    offsets = {}
    for topic in answer.topics:
        for place in topic.partitions:
            if place.error_code:
                error = error_name(place.error_code)
            offsets[topic.name, place.partition_index] = (place.committed_offset, place.metadata)
    return error, offsets
