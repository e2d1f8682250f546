"""A witness of acks=all: what is answered then was on min.insync.replicas replicas (11).

It looks at each step that answers a Produce: the high watermark moved past the batch in it, or
before while the ISR was large enough. All producers of the simulation ask for acks=all.
"""

from __future__ import annotations

from collections import Counter

from broker_sim.core.effects import Respond, Step
from broker_sim.core.parts import BrokerParts
from broker_sim.sim.metadata_oracle import METADATA_TRACE
from broker_sim.sim.violation import violated
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import ApiKey

MIN_INSYNC = "min.insync.replicas"


def check_acknowledged(broker: str, parts: BrokerParts, step: Step, default: int) -> None:
    """After the step. `default` holds for topics that say nothing. Raises Violation (11)."""
    for answer in step.responses:
        if not isinstance(answer, Respond) or answer.api_key is not ApiKey.PRODUCE:
            continue
        for topic in answer.message.responses:
            known = parts.image.topic_of_id(topic.topic_id)
            name = topic.name if known is None else known.name
            for part in topic.partition_responses:
                if part.error_code == ErrorCode.NONE:
                    _check(broker, parts, step, (name, int(part.index), default))


def _check(broker: str, parts: BrokerParts, step: Step, asked: tuple[str, int, int]) -> None:
    name, number, default = asked
    topic, found = parts.image.topics.get(name), parts.replicas.lookup(name, number)
    leader = None if isinstance(found, ErrorCode) else found.leader
    if topic is None or leader is None or _changes(step)[str(topic.topic_id), number] > 1:
        return  # of several ISRs in one step, which one counted is not seen here
    held = leader.registration
    needed = min(int(topic.configs.get(MIN_INSYNC) or default), len(held.replicas))
    if len(held.isr) < needed:
        violated(11, "acks=all is answered with too few replicas in sync", broker=broker,
                 partition=f"{name}-{number}", isr=held.isr, needed=needed)  # fmt: skip


def _changes(step: Step) -> Counter[tuple[str, int]]:
    """How often each partition has changed."""
    records = (trace.fields for trace in step.traces if trace.kind == METADATA_TRACE)
    return Counter(
        (record["topic_id"], record["partition"])
        for record in records
        if record["type"] == "partition-changed"
    )
