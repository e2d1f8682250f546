"""Requests by hand: every field as the test wants it, answers as error names.

For what no well-behaved client does: wrong epochs, gaps in sequences, broken frames, and
transaction version 2, which neither librdkafka nor kafka-python speaks.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from support.brokers.probe import exchange, pause, read_exactly

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey, api_of
from txnlog_kafka.wire.records import Record, encode_batch

TIMEOUT_S = 60.0
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
    """Once, and again with pauses until RETRY_S are over: by time, for a count of tries with short
    pauses is over in a second, which a busy machine may take for the markers of one transaction."""
    deadline = time.monotonic() + RETRY_S
    yield
    while time.monotonic() < deadline:
        pause(pause_s)
        yield


class Connection:
    """One connection to one broker. A context manager."""

    def __init__(self, port: int, client_id: str = "raw") -> None:
        self._client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._correlation_id = 0
        self.lost_answers = 0
        """How often an answer was lost and the request sent again: here a lost one is an error."""
        self.has_kill = False
        """Whether a broker of several is killed meanwhile."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()

    def ask(self, message: Any, version: int) -> Any:
        """Send one request, return the answer's message."""
        self._correlation_id += 1
        framed = encode_request(message, version, self._correlation_id, self._client_id)
        answer = exchange(self.socket, framed[4:])
        (correlation_id,) = struct.unpack_from(">i", answer)
        assert correlation_id == self._correlation_id
        return decode_response(api_of(message), version, answer)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def closed_by_peer(self) -> bool:
        """Whether the broker closes the connection; False when it answers instead."""
        try:
            return read_exactly(self.socket, 1) is None
        except (EOFError, ConnectionError):
            return True


def message_class(key: ApiKey) -> Any:
    """The request class of an API."""
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

    def find_coordinator(self, key: str | None = None, key_type: int = 1) -> str:
        """FindCoordinator, until the coordinator is there."""
        request = message_class(ApiKey.FIND_COORDINATOR)(
            key_type=key_type, coordinator_keys=[key or self.transactional_id]
        )

        def attempt() -> str:
            answer = self.connection.ask(request, 4)
            return error_name(answer.coordinators[0].error_code)

        return self._retry(attempt)

    def init(self, timeout_ms: int = 60_000, *, resume: bool = False) -> str:
        """InitProducerId; with `resume` it carries the current producer id and epoch (KIP-360)."""
        request = message_class(ApiKey.INIT_PRODUCER_ID)(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if resume else -1,
            producer_epoch=self.producer_epoch if resume else -1,
        )

        def attempt() -> str:
            answer = self.connection.ask(request, 4)
            if answer.error_code == 0:
                self.producer_id = answer.producer_id
                self.producer_epoch = answer.producer_epoch
                self.sequences = {}
            return error_name(answer.error_code)

        return self._retry(attempt)

    def add_partitions(self, topic: str, *partitions: int) -> str:
        """AddPartitionsToTxn, the clients' form; the first partition's error."""
        cls = message_class(ApiKey.ADD_PARTITIONS_TO_TXN)
        request = cls(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[cls.AddPartitionsToTxnTopic(name=topic, partitions=[*partitions])],
        )

        def attempt() -> str:
            answer = self.connection.ask(request, 3)
            topic_result = answer.results_by_topic_v3_and_below[0]
            return error_name(topic_result.results_by_partition[0].partition_error_code)

        return self._retry(attempt)

    def batch(self, *values: str, sequence: int, transactional: bool | None = None) -> bytes:
        """A finished batch of this producer."""
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
        cls = message_class(ApiKey.PRODUCE)
        data = cls.TopicProduceData
        place = data.PartitionProduceData(index=partition, records=records)
        request = cls(
            transactional_id=self.transactional_id,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[data(name=topic, partition_data=[place])],
        )

        def attempt() -> str:
            answer = self.connection.ask(request, version)
            result = answer.responses[0].partition_responses[0]
            self.last_offset = result.base_offset
            return error_name(result.error_code)

        return self._retry(attempt)

    def add_offsets(self, group: str) -> str:
        """AddOffsetsToTxn."""
        request = message_class(ApiKey.ADD_OFFSETS_TO_TXN)(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        return self._retry(lambda: error_name(self.connection.ask(request, 3).error_code))

    def commit_offset(
        self, group: str, topic: str, partition: int, committed: int, *,
        metadata: str = "", version: int = 4, generation_id: int = -1, member_id: str = "",
    ) -> str:  # fmt: skip
        """TxnOffsetCommit of one partition; version 5 adds the group by itself."""
        cls = message_class(ApiKey.TXN_OFFSET_COMMIT)
        topics = cls.TxnOffsetCommitRequestTopic
        place = topics.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=committed, committed_metadata=metadata
        )
        request = cls(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id=generation_id,
            member_id=member_id,
            topics=[topics(name=topic, partitions=[place])],
        )

        def attempt() -> str:
            answer = self.connection.ask(request, version)
            return error_name(answer.topics[0].partitions[0].error_code)

        return self._retry(attempt)

    def end(self, *, commit: bool, version: int = 4) -> str:
        """EndTxn; version 5 takes the answered producer id and epoch over."""
        request = message_class(ApiKey.END_TXN)(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )

        def attempt() -> str:
            answer = self.connection.ask(request, version)
            if answer.error_code == 0 and version >= 5:
                if (answer.producer_id, answer.producer_epoch) != self.identity:
                    self.sequences = {}
                self.producer_id = answer.producer_id
                self.producer_epoch = answer.producer_epoch
            return error_name(answer.error_code)

        return self._retry(attempt)

    @property
    def identity(self) -> tuple[int, int]:
        """(producer id, producer epoch)"""
        return self.producer_id, self.producer_epoch


def fetch_offsets(
    connection: Connection, group: str, *, require_stable: bool = True
) -> tuple[str, dict[tuple[str, int], tuple[int, str]]]:
    """OffsetFetch of a whole group: (error name, (topic, partition) -> (offset, metadata))."""
    cls = message_class(ApiKey.OFFSET_FETCH)
    request = cls(
        groups=[cls.OffsetFetchRequestGroup(group_id=group, topics=None)],
        require_stable=require_stable,
    )
    for _ in attempts():
        answer = connection.ask(request, 8).groups[0]
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
