"""Requests of a connection: their numbers and versions, and answers in their order."""

from __future__ import annotations

import pytest

from txnlog_kafka.wire import conversation
from txnlog_kafka.wire.conversation import Asked, Conversation
from txnlog_kafka.wire.framing import MalformedFrame, decode_request, encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey

METADATA = APIS[ApiKey.METADATA]
API_VERSIONS = APIS[ApiKey.API_VERSIONS].response


def ask(talk: Conversation[Asked]) -> bytes:
    """Return the frame of one more request."""
    return b"".join(talk.ask(METADATA.request(topics=[]), 12, Asked()))[4:]


def answer(correlation_id: int) -> bytes:
    message = METADATA.response(brokers=[], topics=[], cluster_id="c")
    return encode_response(ApiKey.METADATA, 12, correlation_id, message)[4:]


def test_an_answer_belongs_to_the_oldest_request():
    talk = Conversation[Asked]("me")
    headers = [decode_request(ask(talk))[0] for _ in range(2)]
    assert [(h.correlation_id, h.client_id) for h in headers] == [(1, "me"), (2, "me")]
    with pytest.raises(MalformedFrame, match="an answer to request 2, which was not asked"):
        talk.oldest(answer(2))
    with pytest.raises(MalformedFrame):
        talk.oldest(answer(1)).decode(answer(1)[:9])
    assert len(talk.unanswered) == 2
    for number in (1, 2):
        assert talk.oldest(answer(number)).decode(answer(number)).cluster_id == "c"
        talk.unanswered.popleft()
    with pytest.raises(MalformedFrame):
        talk.oldest(answer(2))


def test_numbers_begin_again_before_they_are_negative(monkeypatch):
    monkeypatch.setattr(conversation, "CORRELATION_ID_MAX", 1)
    talk = Conversation[Asked]("me")
    assert [decode_request(ask(talk))[0].correlation_id for _ in range(3)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [((0, 5), None, 5), ((0, 99), None, METADATA.version_max), ((0, 9), 4, 4), ((5, 9), 4, None)],
)
def test_the_version_is_the_newest_that_both_know(theirs, ours, found):
    talk = Conversation[Asked]("me")
    assert talk.negotiate(METADATA) is None
    low, high = theirs
    talk.on_versions(
        API_VERSIONS(
            api_keys=[API_VERSIONS.ApiVersion(api_key=3, min_version=low, max_version=high)]
        )
    )
    assert talk.negotiate(METADATA, ours) == found
