"""Rules of faults: what matches, when a rule fires, what is refused, and answers with errors."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace

import pytest

from broker_sim.apis.frames import encode_response
from broker_sim.server.faults.error_answers import CODES, can_say_error, error_answer
from broker_sim.server.faults.requests import faults_answer
from broker_sim.server.faults.rules import CONDITIONS, KEY_TYPES, FaultRules, RuleRefused, names_of
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


def request(api_key, **fields):
    return APIS[api_key].request(**fields)


def parts(key, struct, **fields):
    """A part of a request, by the names of the classes that it is in."""
    kind = APIS[key].request
    for name in struct.split("."):
        kind = getattr(kind, name)
    return kind(**fields)


ADDING = ApiKey.ADD_PARTITIONS_TO_TXN
NESTED = "AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic"


@pytest.mark.parametrize(
    ("message", "condition", "named"),
    [
        (produce_to("orders"), "topic", {"orders"}),
        (PRODUCE(topic_data=[PRODUCE.TopicProduceData(topic_id=SOME_ID)]), "topic", {"orders"}),
        (PRODUCE(topic_data=[PRODUCE.TopicProduceData(topic_id=uuid.UUID(int=8))]), "topic", set()),
        (request(ADDING, v3_and_below_topics=[parts(ADDING, "AddPartitionsToTxnTopic", name="a")]),
         "topic", {"a"}),
        (request(ADDING, transactions=[parts(ADDING, "AddPartitionsToTxnTransaction",
                                             topics=[parts(ADDING, NESTED, name="b")])]),
         "topic", {"b"}),
        (request(ApiKey.DELETE_TOPICS, topic_names=["c", "d"]), "topic", {"c", "d"}),
        (request(ApiKey.FETCH, topics=[parts(ApiKey.FETCH, "FetchTopic", topic_id=SOME_ID)]),
         "topic", {"orders"}),
        (request(ADDING, v3_and_below_transactional_id="t"), "transactional_id", {"t"}),
        (request(ADDING, transactions=[parts(ADDING, "AddPartitionsToTxnTransaction",
                                             transactional_id="t")]), "transactional_id", {"t"}),
        (request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["t"]), "transactional_id", {"t"}),
        (request(ApiKey.FIND_COORDINATOR, key="t", key_type=1), "transactional_id", {"t"}),
        (request(ApiKey.FIND_COORDINATOR, key="t", key_type=1), "group_id", set()),
        (request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"], key_type=0), "group_id", {"g"}),
        (request(ApiKey.HEARTBEAT, group_id="g"), "group_id", {"g"}),
        (request(ApiKey.DESCRIBE_GROUPS, groups=["g", "h"]), "group_id", {"g", "h"}),
        (request(ApiKey.DELETE_GROUPS, groups_names=["g"]), "group_id", {"g"}),
        (request(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=["g"]), "group_id", {"g"}),
        (request(ApiKey.OFFSET_FETCH, groups=[parts(ApiKey.OFFSET_FETCH, "OffsetFetchRequestGroup",
                                                    group_id="g")]), "group_id", {"g"}),
        (request(ApiKey.JOIN_GROUP, protocols=[parts(ApiKey.JOIN_GROUP, "JoinGroupRequestProtocol",
                                                     name="range")]), "topic", set()),
    ],
)  # fmt: skip
def test_names_are_found_by_name_and_by_id_wherever_a_request_has_them(message, condition, named):
    assert names_of(message, condition, name_of) == named


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("key", APIS)
def test_a_condition_matches_what_each_request_may_name_or_is_refused(key, condition):
    api, rules = APIS[key], FaultRules()
    message = filled(api.request)
    if key == ApiKey.FIND_COORDINATOR:
        message.key_type = KEY_TYPES.get(condition, 0)
    names = names_of(message, condition, name_of)
    given = {"api": api.name, "kill": True, condition: min(names, default="x")}
    if names:
        rules.add(given)
        assert fired(rules, message, key) == 1
    else:
        with pytest.raises(RuleRefused, match=f"{condition}: a request of {api.name} has none"):
            rules.add(given)


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


def asked(key, version, message):
    return SimpleNamespace(api_key=key, api_version=version, message=message)


@pytest.mark.parametrize(("key", "version"), SAYING)
def test_every_request_has_an_answer_that_says_the_error(key, version):
    api = APIS[key]
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = error_answer(asked(key, version, filled(api.request)), code)
    frame = encode_response(key, version, 1, answer)
    decoded = decode_response(api, version, frame[4:])
    assert int(code) in codes_in(decoded)


@pytest.mark.parametrize(
    ("key", "version", "message", "names"),
    [
        (ApiKey.DESCRIBE_GROUPS, 6, {"groups": ["g", "h"]}, ["g", "h"]),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": ["g", "h"]}, ["g", "h"]),
        (ApiKey.DELETE_GROUPS, 3, {"groups_names": ["g"]}, ["g"]),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["a"]}, ["a"]),
        (ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": ["k"]}, ["k"]),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["t"]}, ["t"]),
        (ApiKey.METADATA, 12,
         {"topics": [parts(ApiKey.METADATA, "MetadataRequestTopic", name="a")]}, ["a"]),
    ],
)  # fmt: skip
def test_an_answer_with_an_error_names_what_was_asked_for(key, version, message, names):
    api = APIS[key]
    answer = error_answer(
        asked(key, version, api.request(**message)), ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    decoded = decode_response(api, version, encode_response(key, version, 1, answer)[4:])
    arrays = [field.name for field in decoded.STRUCT.untagged(version) if field.is_array]
    (array,) = set(arrays) - {"brokers"}
    fields = ("group_id", "name", "key", "transactional_id")
    found = [
        next(filter(None, (getattr(e, n, None) for n in fields))) for e in getattr(decoded, array)
    ]
    assert found == names


def test_a_refused_produce_or_fetch_names_each_partition_that_was_asked_for():
    data = PRODUCE.TopicProduceData
    indexes = [data.PartitionProduceData(index=number, records=b"") for number in (2, 5)]
    message = PRODUCE(topic_data=[data(name="orders", partition_data=indexes)])
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    (topic,) = error_answer(asked(ApiKey.PRODUCE, 9, message), code).responses
    assert topic.name == "orders"
    assert [(e.index, e.error_code) for e in topic.partition_responses] == [(2, code), (5, code)]
    topics = APIS[ApiKey.FETCH].request.FetchTopic
    wanted = [topics.FetchPartition(partition=number) for number in (2, 5)]
    fetch = request(ApiKey.FETCH, topics=[topics(topic="orders", partitions=wanted)])
    (topic,) = error_answer(asked(ApiKey.FETCH, 6, fetch), code).responses
    assert [(e.partition_index, e.error_code) for e in topic.partitions] == [(2, code), (5, code)]


@pytest.mark.parametrize(
    ("key", "version"),
    [(ApiKey.METADATA, 12), (ApiKey.OFFSET_FETCH, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)],
)
def test_an_answer_of_nothing_has_no_place_for_an_error(key, version):
    message = APIS[key].request(topics=None)
    assert error_answer(asked(key, version, message), ErrorCode.NOT_COORDINATOR) is None
