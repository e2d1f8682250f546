"""A topic that does not exist is named, and so is an existing one that may be meant."""

from __future__ import annotations

import pytest
from support.core.core_broker import Asked, CoreBroker

from txnlog_kafka.errors import UnknownTopic
from txnlog_kafka.operations.effects import Reply, Unanswered
from txnlog_kafka.operations.metadata import UNKNOWN_TOPIC_PATIENCE_MS, require_topics
from txnlog_kafka.wire.messages import ApiKey as K

LEADERS = {(topic, 0): 1 for topic in ("order", "in", "payments")}


class NoList(CoreBroker):
    """Does not answer when it is asked for all topics."""

    def handle(self, asked: Asked) -> Reply | Unanswered:
        if asked.api_key == K.METADATA and asked.message.topics is None:
            return Unanswered("busy", sent=True)
        return super().handle(asked)


def refusal(cluster: CoreBroker, *topics: str) -> str:
    session = cluster.session()
    with pytest.raises(UnknownTopic) as caught:
        cluster.run(require_topics(session, topics))
    assert caught.value.topics == tuple(sorted(set(topics) - {"in"}))
    assert set(session.cluster.topics) <= set(topics), "a client does not hold a large cluster"
    return caught.value.text


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        (
            ["orders", "in"],
            "the topic orders does not exist: create it, or correct the name (did you mean order?)",
        ),
        (["shipments"], "the topic shipments does not exist: create it, or correct the name"),
        (
            ["orders", "payment", "x"],
            "the topics orders, payment, x do not exist: create them, or correct the names "
            "(did you mean order, payments?)",
        ),
    ],
)
def test_topics_that_do_not_exist_are_named_with_the_nearest_ones(
    topics: list[str], told: str
) -> None:
    text = refusal(CoreBroker(leaders=LEADERS), *topics)
    assert text == f"[TXNLOG_UNKNOWN_TOPIC] {told}: UNKNOWN_TOPIC_OR_PARTITION (3)"


def test_a_list_of_topics_that_cannot_be_had_does_not_hide_the_error() -> None:
    cluster = NoList(leaders=LEADERS)
    text = refusal(cluster, "orders")
    assert cluster.now_ms < 3 * UNKNOWN_TOPIC_PATIENCE_MS, "nor does it wait for the list for long"
    assert "the topic orders does not exist: create it, or correct the name: UNKNOWN_" in text
