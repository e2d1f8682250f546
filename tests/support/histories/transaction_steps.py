"""Random sequences of transactional requests, one broker's answers to them, in comparable words.

A `Step` says what is asked and whose identity is used, never which producer id: those differ from
broker to broker, so ids are named by the order in which a sequence met them, and offsets count
from where the sequence began. What depends on time alone is waited for: after each decision the
markers, before each answer the end of CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.brokers.hanging import active_producers
from support.raw.raw import Connection, RawProducer, attempts, fetch_offsets
from support.raw.raw_admin import list_offset
from support.raw.requests import fetch_request, request

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import decode_marker, decode_records, parse_header

UNKNOWN_TOPIC = "no-such-topic"
FETCH_VERSION = 11
PAUSE_S = 0.002
PREPARED = ("PrepareCommit", "PrepareAbort")


class Step(NamedTuple):
    """Request of a sequence. `age` 0 means the newest identity, 1 the one before, and so on; -1
    means a producer id that was never given out. `drift` is added to the identity's epoch; the
    meaning of `detail` depends on the kind."""

    kind: str
    age: int = 0
    drift: int = 0
    partition: int = 0
    detail: str = ""


WEIGHTS = {
    "init": 2,
    "resume": 3,
    "add": 4,
    "add offsets": 3,
    "produce": 7,
    "commit offset": 4,
    "end": 8,
    "verify": 1,
    "observe": 2,
}
DETAILS = {
    "add": ["", "", "", "unknown topic", "both", "unknown id"],
    "add offsets": ["", "", "unknown id"],
    "produce": [
        "v12", "v12", "v12", "v11", "v11", "v10", "v12 gap", "v11 gap", "v12 again", "v11 again",
        "v12 plain", "v12 unknown id", "v11 unknown id", "v12 no id",
    ],
    "commit offset": ["v5", "v5", "v4", "v3", "v5 other group", "v5 generation", "v4 unknown id"],
    "end": ["v4 commit", "v4 abort", "v5 commit", "v5 abort", "v5 commit", "v5 abort",
            "v5 commit unknown id", "v1 abort"],
    "verify": ["", "both"],
}  # fmt: skip


def build_sequence(seed: int, steps: int) -> list[Step]:
    """The sequence of a seed: the same for ever, unless the tables above change."""
    rng = random.Random(seed)
    kinds = list(WEIGHTS)
    sequence = [Step("init")]
    for _ in range(steps):
        kind = rng.choices(kinds, weights=[*WEIGHTS.values()])[0]
        age = rng.choices((0, 1, 2, -1), weights=(16, 3, 1, 1))[0]
        drift = rng.choices((0, -1, 1, 32766), weights=(17, 1, 1, 1))[0]
        partition = rng.choice((0, 0, 1))
        detail = rng.choice(DETAILS.get(kind, [""]))
        if "plain" in detail:
            drift = min(drift, 0)  # a later epoch that needs no coordinator shuts the markers out
        sequence.append(Step(kind, age, drift, partition, detail))
    return sequence


@dataclass
class Side:
    """View that one broker has of one sequence."""

    connection: Connection
    topic: str
    transactional_id: str
    group: str
    identities: list[tuple[int, int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    shows_coordinator_epochs: bool = True
    """Off after a restart: it raises them by one here, by two in Kafka."""
    epochs: set[int] = field(default_factory=set)
    """Epochs that this side was given."""
    sequences: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    base: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.unknown_id = f"{self.transactional_id}-unknown"
        self.producer = RawProducer(self.connection, self.transactional_id, pause_s=PAUSE_S)
        for key, key_type in ((self.transactional_id, 1), (self.unknown_id, 1), (self.group, 0)):
            assert self.producer.find_coordinator(key, key_type) == "NONE"
        self.base = tuple(
            list_offset(self.connection, self.topic, partition, timestamp=-1, version=5).offset
            for partition in (0, 1)
        )

    # ------------------------------------------------------------ one step

    def ask(self, step: Step) -> Any:
        """The answer to one step, comparable between brokers."""
        if step.kind == "observe":
            return self.observe()
        self._take_identity(step)
        producer = self.producer
        producer.transactional_id = (
            self.unknown_id if "unknown id" in step.detail else self.transactional_id
        )
        before = producer.identity
        error = self._send(step)
        if error == "NONE" and step.kind in ("init", "resume", "end"):
            self._learn(before)
            self._settle()
        return error, self._name(producer.producer_id), producer.producer_epoch

    def _take_identity(self, step: Step) -> None:
        if not self.identities:
            return
        producer_id, epoch = self.identities[max(-1 - max(step.age, 0), -len(self.identities))]
        self.producer.producer_id = producer_id + (10**9 if step.age < 0 else 0)
        self.producer.producer_epoch = min(max(epoch + step.drift, 0), 32767)

    def _learn(self, before: tuple[int, int]) -> None:
        after = self.producer.identity
        if after != before:
            self.epochs.add(after[1])
        if after[0] not in self.ids:
            self.ids.append(after[0])
        if after != before or after not in self.identities:
            self.identities = [each for each in self.identities if each != after]
            self.identities.append(after)

    def _name(self, producer_id: int) -> str:
        if producer_id in self.ids:
            return f"id {self.ids.index(producer_id)}"
        return "none" if producer_id < 0 else "another id"

    def _send(self, step: Step) -> str:
        producer, detail = self.producer, step.detail
        if step.kind in ("init", "resume"):
            return producer.init(resume=step.kind == "resume")
        if step.kind == "add":
            topic = UNKNOWN_TOPIC if detail == "unknown topic" else self.topic
            partitions = (0, 1) if detail == "both" else (step.partition,)
            return producer.add_partitions(topic, *partitions)
        if step.kind == "add offsets":
            return producer.add_offsets(self.group)
        if step.kind == "verify":
            return self._verify(step)
        if step.kind == "produce":
            return self._produce(step)
        if step.kind == "commit offset":
            return self._commit_offset(step)
        version, word = detail.split()[:2]
        return producer.end(commit=word == "commit", version=int(version[1:]))

    def _verify(self, step: Step) -> str:
        """Verify-only AddPartitionsToTxn, as one broker asks another (KIP-890)."""
        partitions = [0, 1] if step.detail == "both" else [step.partition]
        transaction = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
            "verify_only": True,
            "topics": [{"name": self.topic, "partitions": partitions}],
        }
        message = request(ApiKey.ADD_PARTITIONS_TO_TXN, transactions=[transaction])
        answer = self.connection.ask(message, 5)
        results = answer.results_by_transaction[0].topic_results[0].results_by_partition
        by_partition = sorted((r.partition_index, r.partition_error_code) for r in results)
        return ", ".join(error_name(code) for _, code in by_partition)

    def _produce(self, step: Step) -> str:
        producer, words = self.producer, step.detail.split()
        key = (*producer.identity, step.partition)
        sent = self.sequences.setdefault(key, [0])
        base = sent[-1]
        if "gap" in words:
            base += 7
        elif "again" in words and len(sent) > 1:
            base = sent[-2]
        transactional = "plain" not in words
        batch = producer.batch("a", "b", sequence=base, transactional=transactional)
        if words[1:] == ["no", "id"]:
            producer.transactional_id = None
        error = producer.produce_bytes(self.topic, step.partition, batch, int(words[0][1:]))
        if error == "NONE" and base == sent[-1]:
            sent.append(base + 2)
        if producer.last_offset >= 0:
            return f"{error} at {producer.last_offset - self.base[step.partition]}"
        return error

    def _commit_offset(self, step: Step) -> str:
        words = step.detail.split()
        more = {"generation_id": 3, "member_id": "m"} if "generation" in words else {}
        return self.producer.commit_offset(
            f"{self.group}-other" if "other" in words else self.group,
            self.topic, step.partition, 10 + step.partition, version=int(words[0][1:]), **more,
        )  # fmt: skip

    # ------------------------------------------------------------ what can be seen

    def observe(self) -> tuple:
        """State, offsets and producers, as the admin requests show them."""
        return (
            self._described(),
            self._listed(),
            self._offsets(),
            *(self._producers(partition) for partition in (0, 1)),
        )

    def finish(self) -> tuple:
        """End what is open, then everything that can be read of the sequence."""
        self.producer = RawProducer(self.connection, self.transactional_id, pause_s=PAUSE_S)
        error = self.producer.init()
        self._learn((-1, -1))
        self._settle()
        identity = (error, self._name(self.producer.producer_id), self.producer.producer_epoch)
        logs = (self._fetched(partition) for partition in (0, 1))
        return identity, self.observe(), *logs

    def _describe(self) -> Any:
        names = [self.transactional_id]
        message = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=names)
        return self.connection.ask(message, 0).transaction_states[0]

    def adopt(self, identity: tuple[int, int]) -> None:
        """Go on as the holder of an identity that the broker has in its log."""
        self.ids.append(identity[0])
        self.identities.append(identity)

    def _settle(self) -> None:
        """Wait for the markers: their time is no rule."""
        for _ in attempts(PAUSE_S):
            if self._describe().transaction_state not in PREPARED:
                return
        raise AssertionError(f"{self.transactional_id} does not settle")

    def _described(self) -> tuple:
        state = self._describe()
        topics = sorted(
            (topic.topic.replace(self.topic, "topic"), *sorted(topic.partitions))
            for topic in state.topics
        )
        return (
            error_name(state.error_code),
            state.transaction_state,
            self._name(state.producer_id),
            state.producer_epoch,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms > 0,
            topics,
        )

    def _listed(self) -> list:
        message = request(
            ApiKey.LIST_TRANSACTIONS,
            state_filters=["Ongoing", "CompleteCommit", "Nonsense"],
            producer_id_filters=self.ids,
        )
        answer = self.connection.ask(message, 1)
        found = sorted(
            (state.transactional_id == self.transactional_id, state.transaction_state)
            for state in answer.transaction_states
        )
        return [error_name(answer.error_code), answer.unknown_state_filters, *found]

    def _offsets(self) -> tuple:
        error, stable = fetch_offsets(self.connection, self.group)
        _, latest = fetch_offsets(self.connection, self.group, require_stable=False)
        return error, sorted(stable.values()), sorted(latest.values())

    def _producers(self, partition: int) -> list:
        _, active = active_producers(self.connection, self.topic, partition)
        base = self.base[partition]
        return sorted(
            (
                self._name(each.producer_id),
                each.producer_epoch,
                each.last_sequence,
                self._coordinator_epoch(each.coordinator_epoch),
                each.current_txn_start_offset - base if each.current_txn_start_offset >= 0 else -1,
            )
            for each in active
            if each.producer_id in self.ids
        )

    def _coordinator_epoch(self, epoch: int) -> int:
        return epoch if self.shows_coordinator_epochs else min(epoch, 0)

    def _fetched(self, partition: int) -> tuple:
        """Return all batches up to the last stable offset, and the facts that a reader judges them
        by."""
        base = self.base[partition]
        aborted: set[tuple[str, int]] = set()
        batches: list[tuple] = []
        offset = base
        while True:
            answer = self._fetch(partition, offset)
            aborted |= {
                (self._name(each.producer_id), each.first_offset - base)
                for each in answer.aborted_transactions or []
            }
            for next_offset, batch in self._batches(bytes(answer.records or b""), base):
                if next_offset > offset:
                    batches.append(batch)
                    offset = next_offset
            if answer.error_code or offset >= answer.last_stable_offset:
                break
        return (
            error_name(answer.error_code),
            answer.high_watermark - base,
            answer.last_stable_offset - base,
            sorted(aborted),
            batches,
        )

    def _fetch(self, partition: int, offset: int) -> Any:
        """Return one read_committed answer; it may end before the last stable offset."""
        message = fetch_request(
            self.topic, offset, partition=partition, min_bytes=0, max_wait_ms=0, committed=True
        )
        return self.connection.ask(message, FETCH_VERSION).responses[0].partitions[0]

    def _batches(self, data: bytes, base: int):
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            size = header.size_bytes
            batch = data[position : position + size]
            position += size
            if header.base_offset < base:
                continue
            values: Any = [record.value for record in decode_records(batch, 0, header)]
            if header.is_control:
                marker = decode_marker(batch, 0, header)
                values = (
                    marker.marker_type.name,
                    self._coordinator_epoch(marker.coordinator_epoch),
                )
            yield (
                header.next_offset,
                (
                    header.base_offset - base,
                    self._name(header.producer_id),
                    header.producer_epoch,
                    header.base_sequence,
                    header.is_transactional,
                    values,
                ),
            )
