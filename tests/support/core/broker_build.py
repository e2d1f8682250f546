"""A broker of the core on a disk in memory, asked message by message, at any version."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import (
    Close,
    Disconnected,
    Effects,
    Input,
    NoResponse,
    Request,
    Respond,
    SetTimer,
    Start,
    Step,
    Stop,
    TimerFired,
)
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.security.principals import ANONYMOUS
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.framing import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

SMALL = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}


def request(api_key: ApiKey, /, **fields: Any) -> Any:
    """A request message without a version."""
    return KNOWN_APIS[api_key].request(**fields)


def struct(message: Any, struct_name: str, /, **fields: Any) -> Any:
    """A nested struct of a request, found by its class name anywhere below `message`."""
    pending = [message]
    while pending:
        holder = pending.pop()
        found = getattr(holder, struct_name, None)
        if found is not None:
            return found(**fields)
        pending += [
            getattr(holder, field.kind)
            for field in holder.STRUCT.fields
            if field.struct is not None
        ]
    raise LookupError(struct_name)


class Asked:
    """The answers so far of a broker that was asked; `closed` has reasons by connection."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, int], Any] = {}
        self.closed: dict[int, str] = {}
        self.unanswered: set[tuple[int, int]] = set()


class BrokerOnDisk:
    """Drives one `Broker`: performs its storage operations, encodes and decodes all messages."""

    def __init__(
        self,
        config: dict | None = None,
        *,
        disk: SimDisk | None = None,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self.config = BrokerConfig(SMALL | (config or {}))
        self.disk = disk or SimDisk()
        self._codecs = codecs
        self.now_ms = 1_700_000_000_000
        self.monotonic_ms = 1_000
        self.asked = Asked()
        self.client_id = "test"
        self.listener = "PLAINTEXT"
        """By which everybody asks, and as whom, until a login says otherwise."""
        self.principal = ANONYMOUS
        self.timers: dict[tuple[str, ...], int] = {}
        self.steps: list[Step] = []
        self._correlation_id = 0
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start on what the disk holds, as a new process."""
        self._starts += 1
        self.timers.clear()
        rng = random.Random(self._seed())
        self.broker = Broker(self.config, self.disk, rng, codecs=self._codecs)
        self.step(Start("boot"))

    def _seed(self) -> int | str:
        """Of this start's entropy."""
        return self._starts

    def kill(self) -> None:
        """SIGKILL and start again."""
        self.start()

    def stop(self) -> None:
        """A clean stop."""
        self.step(Stop())

    def step(self, item: Input) -> Step:
        """One step, all its effects carried out."""
        return self._carry_out(self.broker.step(item, self.now_ms, self.monotonic_ms))

    def cause(self, call: Callable[[Effects], None]) -> Step:
        """What a call of one of the broker's parts causes, carried out as a step."""
        effects = Effects(self.now_ms, self.monotonic_ms)
        call(effects)
        return self._carry_out(effects.freeze())

    def _carry_out(self, step: Step) -> Step:
        for operation in step.storage:
            self.disk.apply(operation)
        for response in step.responses:
            self._respond(response)
        for change in step.timers:
            if isinstance(change, SetTimer):
                self.timers[change.key] = change.deadline_ms
            else:
                self.timers.pop(change.key, None)
        self.steps.append(step)
        return step

    def _respond(self, response: Respond | NoResponse | Close) -> None:
        match response:
            case Close(connection_id, reason):
                self.asked.closed[connection_id] = reason
            case NoResponse(connection_id, correlation_id):
                self.asked.unanswered.add((connection_id, correlation_id))
            case Respond():
                for records in response.records:
                    records.target.records = b"".join(
                        self.disk.read(s.path, s.position, s.length) for s in records.slices
                    )
                frame = encode_response(
                    response.api_key,
                    response.api_version,
                    response.correlation_id,
                    response.message,
                )
                api = KNOWN_APIS[response.api_key]
                self.asked.answers[response.connection_id, response.correlation_id] = (
                    decode_response(api, response.api_version, frame[4:])
                )

    def send(self, message: Any, version: int, *, connection_id: int = 1) -> tuple[int, int]:
        """Send a request over the wire's bytes; the key of its answer in `asked`."""
        self._correlation_id += 1
        frame = encode_request(message, version, self._correlation_id, self.client_id)
        header, decoded = decode_request(frame[4:])
        self.step(
            Request(
                connection_id=connection_id,
                correlation_id=header.correlation_id,
                api_key=header.api_key,
                api_version=version,
                client_id=self.client_id,
                client_host="127.0.0.1",
                message=decoded,
                listener=self.listener,
                principal=self.principal,
            )
        )
        return connection_id, header.correlation_id

    def ask(self, message: Any, version: int, *, connection_id: int = 1) -> Any:
        """The answer, which must come in the same step."""
        key = self.send(message, version, connection_id=connection_id)
        assert key in self.asked.answers, self.asked.closed
        return self.asked.answers[key]

    def advance(self, duration_ms: int) -> None:
        """Let time pass, firing the timers that come due, in order."""
        end_ms = self.monotonic_ms + duration_ms
        while self.timers:
            key, deadline_ms = min(self.timers.items(), key=lambda item: (item[1], item[0]))
            if deadline_ms > end_ms:
                break
            del self.timers[key]
            self._set_clock(max(deadline_ms, self.monotonic_ms))
            self.step(TimerFired(key))
        self._set_clock(end_ms)

    def _set_clock(self, monotonic_ms: int) -> None:
        self.now_ms += monotonic_ms - self.monotonic_ms
        self.monotonic_ms = monotonic_ms

    def disconnect(self, connection_id: int = 1) -> None:
        """The connection is gone."""
        self.step(Disconnected(connection_id))

    # ------------------------------------------------------------------ short forms

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """CreateTopics for one topic; its result."""
        message = request(ApiKey.CREATE_TOPICS, timeout_ms=1000, validate_only=False)
        config_list = [
            struct(message, "CreatableTopicConfig", name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        message.topics = [
            struct(
                message,
                "CreatableTopic",
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=config_list,
            )
        ]
        return self.ask(message, 7).topics[0]

    def produce(self, topic: str, *values: str, partition: int = 0, version: int = 11) -> Any:
        """Produce one plain batch; the partition's result."""
        records = encode_batch([Record(None, v.encode(), self.now_ms) for v in values])
        return self.produce_bytes({(topic, partition): records}, version=version)[0]

    def produce_bytes(
        self,
        batches: dict[tuple[str, int], bytes | None],
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        version: int = 11,
    ) -> list[Any]:
        """Produce these bytes; the partitions' results in order."""
        answer = self.ask(produce_request(batches, acks, transactional_id), version)
        return [p for topic in answer.responses for p in topic.partition_responses]

    def fetch(self, topic: str, offset: int = 0, *, version: int = 12, **fields: Any) -> Any:
        """Fetch one partition without waiting; its result."""
        answer = self.ask(fetch_request(topic, offset, **{"max_wait_ms": 0} | fields), version)
        return answer.responses[0].partitions[0]


def produce_request(
    batches: dict[tuple[str, int], bytes | None],
    acks: int = -1,
    transactional_id: str | None = None,
) -> Any:
    """A Produce request with these bytes."""
    message = request(ApiKey.PRODUCE, acks=acks, timeout_ms=1000, transactional_id=transactional_id)
    message.topic_data = [
        struct(
            message,
            "TopicProduceData",
            name=topic,
            partition_data=[
                struct(message, "PartitionProduceData", index=partition, records=records)
            ],
        )
        for (topic, partition), records in batches.items()
    ]
    return message


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    max_bytes: int = 1 << 20,
    committed: bool = False,
    leader_epoch: int = -1,
    **fields: Any,
) -> Any:
    """A Fetch request for one partition."""
    message = request(
        ApiKey.FETCH,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        session_id=fields.pop("session_id", 0),
        session_epoch=fields.pop("session_epoch", -1),
        forgotten_topics_data=[],
        rack_id=fields.pop("rack_id", ""),
        **fields,
    )
    message.topics = [
        struct(
            message,
            "FetchTopic",
            topic=topic,
            partitions=[
                struct(
                    message,
                    "FetchPartition",
                    partition=partition,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=max_bytes,
                )
            ],
        )
    ]
    return message
