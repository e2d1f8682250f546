"""Rules of faults: what matches, when a rule fires, what is refused, and answers with errors."""

from __future__ import annotations

import json
import uuid

import pytest

from broker_sim.apis.frames import encode_response
from broker_sim.server.faults.error_answers import CODES, can_say_error, error_answer
from broker_sim.server.faults.requests import faults_answer
from broker_sim.server.faults.rules import FaultRules, RuleRefused, topics_of
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import decode_response
from txnlog_kafka.wire.messages import APIS, ApiKey

END_TXN = APIS[ApiKey.END_TXN].request
PRODUCE = APIS[ApiKey.PRODUCE].request
SOME_ID = uuid.UUID(int=7)


def name_of(topic_id):
    return {SOME_ID: "orders"}.get(topic_id)


def produce_to(topic):
    data = PRODUCE.TopicProduceData
    part = data.PartitionProduceData(index=0, records=b"")
    return PRODUCE(topic_data=[data(name=topic, partition_data=[part])])


def fired(rules, message, key, client_id="client", *, of_broker=False):
    rule = rules.decide(key, client_id, message, name_of, of_broker=of_broker)
    return None if rule is None else rule.id


def test_a_rule_fires_at_its_call_and_so_many_times():
    rules = FaultRules()
    rules.add({"api": "EndTxn", "on_call": 2, "times": 2, "kill": True})
    message = END_TXN(transactional_id="t")
    assert [fired(rules, message, ApiKey.END_TXN) for _ in range(5)] == [None, 1, 1, None, None]
    (rule,) = rules.listed()
    assert (rule["calls"], rule["fired"]) == (5, 2)


def test_a_rule_of_no_number_of_times_fires_always():
    rules = FaultRules()
    rules.add({"api": "EndTxn", "times": 0, "kill": True})
    message = END_TXN(transactional_id="t")
    assert [fired(rules, message, ApiKey.END_TXN) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ({"client_id": "client"}, True),
        ({"client_id": "other"}, False),
        ({"transactional_id": "t"}, True),
        ({"transactional_id": "u"}, False),
        ({"group_id": "g"}, False),
        ({"topic": "orders"}, False),
        ({}, True),
    ],
)
def test_conditions_are_all_met_or_the_rule_does_not_count(condition, matches):
    rules = FaultRules()
    rules.add({"api": "EndTxn", "kill": True, **condition})
    assert (fired(rules, END_TXN(transactional_id="t"), ApiKey.END_TXN) == 1) == matches
    assert rules.listed()[0]["calls"] == matches


def test_a_request_of_another_broker_matches_only_by_its_client_id():
    rules = FaultRules()
    rules.add({"api": "EndTxn", "kill": True})
    rules.add({"api": "EndTxn", "kill": True, "client_id": "broker-1"})
    message = END_TXN(transactional_id="t")
    assert fired(rules, message, ApiKey.END_TXN, "broker-1", of_broker=True) == 2


def test_the_first_rule_that_fires_is_done_and_the_others_count():
    rules = FaultRules()
    rules.add({"api": "EndTxn", "kill": True})
    rules.add({"api": "EndTxn", "pause_ms": 1})
    assert fired(rules, END_TXN(transactional_id="t"), ApiKey.END_TXN) == 1
    assert [rule["calls"] for rule in rules.listed()] == [1, 1]


def test_topics_are_found_by_name_and_by_id_wherever_a_request_names_them():
    assert topics_of(produce_to("orders"), name_of) == {"orders"}
    data = PRODUCE.TopicProduceData
    assert topics_of(PRODUCE(topic_data=[data(topic_id=SOME_ID)]), name_of) == {"orders"}
    assert topics_of(PRODUCE(topic_data=[data(topic_id=uuid.UUID(int=8))]), name_of) == set()
    adding = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].request
    named = adding(v3_and_below_topics=[adding.AddPartitionsToTxnTopic(name="a", partitions=[0])])
    assert topics_of(named, name_of) == {"a"}
    transaction = adding.AddPartitionsToTxnTransaction(
        transactional_id="t",
        topics=[adding.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic(name="b")],
    )
    assert topics_of(adding(transactions=[transaction]), name_of) == {"b"}
    deleting = APIS[ApiKey.DELETE_TOPICS].request
    assert topics_of(deleting(topic_names=["c", "d"]), name_of) == {"c", "d"}
    fetching = APIS[ApiKey.FETCH].request
    fetched = fetching(topics=[fetching.FetchTopic(topic_id=SOME_ID)])
    assert topics_of(fetched, name_of) == {"orders"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"api": "EndTxn"}, "the rule does nothing"),
        ({"api": "Endtxn", "kill": True}, "api='Endtxn' is not one of"),
        ({"kill": True}, "api=None is not one of"),
        ({"api": "EndTxn", "kill": 1}, "kill=1 is not a value of type bool"),
        (
            {"api": "EndTxn", "kill": True, "on_call": True},
            "on_call=True is not a value of type int",
        ),
        ({"api": "EndTxn", "kill": True, "on_call": 0}, "the first request is number 1"),
        ({"api": "EndTxn", "kill": True, "times": -1}, "times=-1"),
        ({"api": "EndTxn", "delay_ms": -1}, "delay_ms=-1 is not between"),
        ({"api": "EndTxn", "kil": True}, "kil is not a field of a rule"),
        ({"api": "EndTxn", "id": 3, "kill": True}, "id is not a field"),
        ({"api": "EndTxn", "error": "NOPE"}, "error='NOPE' is not the name"),
        ({"api": "EndTxn", "error": "NONE"}, "error='NONE' is not the name"),
        ({"api": "EndTxn", "error": "NOT_COORDINATOR", "kill": True}, "error is an answer"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_its_field(given, says):
    with pytest.raises(RuleRefused, match=says):
        FaultRules().add(given)


def test_rules_are_made_listed_and_removed_over_http():
    ask = faults_answer(FaultRules())
    body = json.dumps({"api": "EndTxn", "kill": True}).encode()
    assert ask("POST", "/faults", body).status == "201 Created"
    assert ask("POST", "/faults", body).status == "201 Created"
    assert [each["id"] for each in json.loads(ask("GET", "/faults", b"").text)] == [1, 2]
    assert ask("DELETE", "/faults/1", b"").status == "200 OK"
    assert ask("DELETE", "/faults/1", b"").status == "404 Not Found"
    assert json.loads(ask("DELETE", "/faults", b"").text) == []
    for wrong in (b"{", b"[]", b'{"api": "EndTxn"}', b"\xff"):
        answer = ask("POST", "/faults", wrong)
        assert answer.status == "400 Bad Request"
        assert json.loads(answer.text)["error"]
    assert ask("PUT", "/faults", b"").status == "405 Method Not Allowed"
    assert ask("GET", "/", b"").status == "404 Not Found"


def filled(kind, depth=0):
    """Return a struct of this class with an element in each array."""
    value = kind()
    for field in kind.STRUCT.fields:
        if field.is_array:
            plain = {"string": "x", "uuid": SOME_ID, "bytes": b"x"}.get(field.kind, 0)
            element = plain if field.struct is None else filled(getattr(kind, field.kind))
            setattr(value, field.name, [element])
        elif field.struct is not None:
            setattr(value, field.name, filled(getattr(kind, field.kind)))
        elif field.kind in ("string", "bytes", "uuid", "records"):
            setattr(value, field.name, {"string": "x", "uuid": SOME_ID}.get(field.kind, b"x"))
    return value


def codes_in(value):
    """Return all error codes of an answer."""
    found = []
    for field in value.STRUCT.fields:
        inside = getattr(value, field.name)
        if field.name in CODES:
            found.append(inside)
        elif field.struct is not None and inside is not None:
            for each in inside if field.is_array else [inside]:
                found += codes_in(each)
    return found


SAYING = [
    pytest.param(key, version, id=f"{api.name} {version}")
    for key, api in APIS.items()
    if can_say_error(api.response.STRUCT)
    for version in range(api.version_min, api.version_max + 1)
]


@pytest.mark.parametrize(("key", "version"), SAYING)
def test_every_request_has_an_answer_that_says_the_error(key, version):
    api = APIS[key]
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = error_answer(key, version, filled(api.request), code)
    frame = encode_response(key, version, 1, answer)
    decoded = decode_response(api, version, frame[4:])
    codes = codes_in(decoded)
    assert codes
    assert int(code) in codes


def test_a_refused_produce_names_each_partition_that_was_asked_for():
    data = PRODUCE.TopicProduceData
    parts = [data.PartitionProduceData(index=number, records=b"") for number in (2, 5)]
    asked = PRODUCE(topic_data=[data(name="orders", partition_data=parts)])
    answer = error_answer(ApiKey.PRODUCE, 9, asked, ErrorCode.NOT_ENOUGH_REPLICAS)
    (topic,) = answer.responses
    assert topic.name == "orders"
    found = [(each.index, each.error_code) for each in topic.partition_responses]
    assert found == [(2, ErrorCode.NOT_ENOUGH_REPLICAS), (5, ErrorCode.NOT_ENOUGH_REPLICAS)]
