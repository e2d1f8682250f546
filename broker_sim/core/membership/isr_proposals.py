"""ISR proposals of this broker's leaders, on their way to the controller: AlterPartition (KIP-497).

One request is on its way at a time, and takes all proposals there are then. What the controller has
not decided, as it was not reached or is another one by now, goes with the next request, after a
moment. Source: Kafka's `AlterPartitionManager`.
"""

from __future__ import annotations

import uuid
from typing import Any

from broker_sim.apis import BROKER_APIS, BrokerApiKey
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.membership.controller_requests import Line
from broker_sim.core.replica.leader import DECIDED, IsrProposal
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import Message

_API = BROKER_APIS[BrokerApiKey.ALTER_PARTITION]
_Key = tuple[uuid.UUID, int]
ISR_RETRY_TIMER = ("alter-partition",)
RETRY_MS = 50

_Pending = dict[_Key, tuple[IsrProposal, Reply[ErrorCode]]]


class IsrProposals:
    """See the module."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._pending: _Pending = {}
        self._is_asked = False
        self._waits = False

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module."""
        if key == ISR_RETRY_TIMER:
            self._waits = False
            self._send_proposals(effects)
        return key == ISR_RETRY_TIMER

    def propose(self, proposal: IsrProposal, reply: Reply[ErrorCode], effects: Effects) -> None:
        """Ask for an ISR, in place of what was asked for the partition and not yet sent."""
        self._pending[proposal.topic_id, proposal.partition] = proposal, reply
        self._send_proposals(effects)

    def _send_proposals(self, effects: Effects) -> None:
        if self._is_asked or self._waits or not self._pending:
            return
        self._is_asked = True
        sent, self._pending = self._pending, {}

        def on_answer(answer: Any, effects: Effects) -> None:
            self._is_asked = False
            errors = _errors(answer)
            for key, (proposal, reply) in sent.items():
                error = errors.get(key, _of_all(answer))
                if error in DECIDED:
                    reply(error, effects)
                else:  # one that was proposed meanwhile is in its place
                    effects.trace("isr-not-decided", partition=key[1], error=error.name)
                    self._pending.setdefault(key, (proposal, reply))
                    self._waits = True
            if self._waits:
                effects.set_timer(*ISR_RETRY_TIMER, after_ms=RETRY_MS)
            self._send_proposals(effects)

        proposals = [proposal for proposal, _ in sent.values()]
        self._line.ask(_message(self._line.me(), proposals), on_answer, effects)


def _message(me: tuple[int, int], proposals: list[IsrProposal]) -> Message:
    topic_class = _API.request.TopicData
    partition_class = topic_class.PartitionData
    by_topic: dict[uuid.UUID, list[Any]] = {}
    for each in proposals:
        members = zip(each.isr, each.broker_epochs, strict=True)
        made = partition_class(
            partition_index=each.partition,
            leader_epoch=each.leader_epoch,
            new_isr_with_epochs=[
                partition_class.BrokerState(broker_id=number, broker_epoch=epoch)
                for number, epoch in members
            ],
            partition_epoch=each.partition_epoch,
        )
        by_topic.setdefault(each.topic_id, []).append(made)
    topics = [
        topic_class(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]
    return _API.request(broker_id=me[0], broker_epoch=me[1], topics=topics)


def _of_all(answer: Any) -> ErrorCode:
    """Return the error for the partitions that an answer does not name: refused, or not reached."""
    if isinstance(answer, ErrorCode):
        return answer
    return ErrorCode(answer.error_code or ErrorCode.UNKNOWN_SERVER_ERROR)


def _errors(answer: Any) -> dict[_Key, ErrorCode]:
    if isinstance(answer, ErrorCode):
        return {}
    return {
        (topic.topic_id, partition.partition_index): ErrorCode(partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    }
