"""A transactional producer of brokers with a registry, on virtual time."""

from __future__ import annotations

from typing import Any

from support.core.broker_build import produce_request, request, struct
from support.core.registry_cluster import RegistryCluster

from txnlog_kafka.wire.errors import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import Record, encode_batch


class Producer:
    """A transactional producer by raw requests, at whoever leads."""

    def __init__(self, cluster: RegistryCluster) -> None:
        self.cluster = cluster
        while True:
            found = self.ask_coordinator(
                request(K.INIT_PRODUCER_ID, transactional_id="t", producer_id=-1,
                        producer_epoch=-1, transaction_timeout_ms=60_000), 4)  # fmt: skip
            if found.error_code == 0:
                break
        self.ids = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}

    def coordinator(self) -> int:
        message = request(K.FIND_COORDINATOR, key_type=1, coordinator_keys=["t"])
        for _ in range(100):
            number = next(b.node_id for b in self.cluster.up if b.membership.is_serving)
            (found,) = self.cluster.ask(number, message, 4).coordinators
            if found.error_code == 0:
                return int(found.node_id)
            self.cluster.run(100)
        raise AssertionError("there is no coordinator")

    def ask_coordinator(self, message: Any, version: int) -> Any:
        for _ in range(100):
            answer = self.cluster.ask(self.coordinator(), message, version)
            if getattr(answer, "error_code", 0) != E.COORDINATOR_LOAD_IN_PROGRESS:
                return answer
            self.cluster.run(100)
        raise AssertionError("the coordinator is not loaded")

    def begin(self) -> None:
        """One record of the transaction in `orders`, acknowledged."""
        self.add_partition()
        assert self.produce(0) is E.NONE

    def add_partition(self) -> None:
        """Add `orders` to the transaction."""
        message = request(K.ADD_PARTITIONS_TO_TXN, v3_and_below_transactional_id="t",
                          v3_and_below_producer_id=self.ids["producer_id"],
                          v3_and_below_producer_epoch=self.ids["producer_epoch"])  # fmt: skip
        message.v3_and_below_topics = [
            struct(message, "AddPartitionsToTxnTopic", name="orders", partitions=[0])
        ]
        result = self.ask_coordinator(message, 3)
        assert (
            result.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            == 0
        )

    def produce(self, sequence: int) -> E:
        """One record, by the leader."""
        leader = self.cluster.held("orders").leader
        batch = encode_batch(
            [Record(None, b"%d" % sequence, self.cluster.brokers[leader].now_ms)],
            base_sequence=sequence,
            transactional=True,
            **self.ids,
        )
        sent = produce_request({("orders", 0): batch}, -1, "t")
        answer = self.cluster.ask(leader, sent, 11)
        return E(answer.responses[0].partition_responses[0].error_code)

    def commit(self) -> E:
        return self.end(committed=True)

    def end(self, *, committed: bool) -> E:
        message = request(K.END_TXN, transactional_id="t", committed=committed, **self.ids)
        return E(self.ask_coordinator(message, 4).error_code)
