"""`StandardAuthorizer`'s rules, and the same by a plain reading of them over random ACLs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from broker_sim.core.config import AUTHORIZER, BrokerConfig, ConfigError
from broker_sim.core.controller.acls import (
    OPERATIONS,
    Acl,
    AclFilter,
    AclOperation,
    Acls,
    PatternType,
    Permission,
    ResourceType,
)
from broker_sim.core.effects import Request
from broker_sim.core.security.authorizer import Authorizer
from txnlog_kafka.wire.messages import ApiKey

Op, P = AclOperation, PatternType
TOPIC = ResourceType.TOPIC
ENABLED = {"authorizer.class.name": AUTHORIZER}


def acl(
    operation=Op.READ,
    name="orders",
    *,
    prefixed=False,
    principal="User:alice",
    host="*",
    deny=False,
    resource_type=TOPIC,
) -> Acl:
    return Acl(
        resource_type,
        P.PREFIXED if prefixed else P.LITERAL,
        name,
        principal,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


def asking(principal="User:alice", host="10.0.0.1") -> Request:
    return Request(1, 1, ApiKey.FETCH, 12, None, host, None, principal=principal)


def authorizer(*acls: Acl, **options: str) -> Authorizer:
    known = Acls()
    for each in acls:
        known.add(each)
    return Authorizer(BrokerConfig(ENABLED | options), known)


def allowed(acls, operation=Op.READ, name="orders", *, request=None, **options) -> bool:
    return authorizer(*acls, **options).allows(request or asking(), operation, TOPIC, name)


def test_without_an_authorizer_everybody_may_do_everything():
    nobody = Authorizer(BrokerConfig(), Acls())
    assert nobody.allows(asking(), Op.ALTER, TOPIC, "orders")
    assert nobody.allows_any(asking(), Op.WRITE, TOPIC)
    assert nobody.operations(asking(), TOPIC, "orders") == OPERATIONS[TOPIC]


def test_what_no_acl_allows_is_denied_unless_it_is_open():
    assert not allowed([])
    open_ = {"allow.everyone.if.no.acl.found": "true"}
    assert allowed([], **open_)
    assert not allowed([acl(principal="User:bob")], **open_)
    assert allowed([acl(name="other")], **open_)


def test_super_users_may_do_what_is_denied():
    users = {"super.users": "User:admin; User:CN=b,O=c"}
    denied = [acl(Op.ALL, "*", principal="User:*", deny=True)]
    assert not allowed(denied, **users)
    for principal in ("User:admin", "User:CN=b,O=c"):
        assert allowed(denied, request=asking(principal), **users)
    with pytest.raises(ConfigError, match=r"super\.users must be"):
        authorizer(**{"super.users": "admin"})


def test_the_operations_that_are_allowed():
    found = authorizer(acl(Op.READ), acl(Op.ALTER_CONFIGS, name="*")).operations(
        asking(), TOPIC, "orders"
    )
    assert found == {Op.READ, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS}


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl(Op.WRITE)], True),
        ([acl(Op.ALL)], True),
        ([acl(Op.READ)], False),
        ([acl(Op.WRITE, principal="User:bob")], False),
        ([acl(Op.WRITE), acl(Op.WRITE, deny=True)], False),
        ([acl(Op.WRITE), acl(Op.WRITE, "ord", prefixed=True, deny=True)], False),
        ([acl(Op.WRITE), acl(Op.WRITE, "*", deny=True)], False),
        ([acl(Op.WRITE), acl(Op.WRITE, "other", deny=True)], True),
        (
            [acl(Op.WRITE, "ord", prefixed=True), acl(Op.WRITE, "o", prefixed=True, deny=True)],
            False,
        ),
        ([acl(Op.WRITE, "ord", prefixed=True), acl(Op.WRITE, deny=True)], True),
        ([acl(Op.WRITE, "*"), acl(Op.WRITE, "x", prefixed=True, deny=True)], True),
    ],
)
def test_whether_anything_of_a_type_is_allowed(acls, expected):
    assert authorizer(*acls).allows_any(asking(), Op.WRITE, TOPIC) is expected


def plain_reading(acls, request, operation, name, *, open_):
    """Kafka's documentation, word by word."""
    concerning = [
        a
        for a in acls
        if a.resource_type is TOPIC
        and (
            (a.pattern_type is P.LITERAL and a.name in (name, "*"))
            or (a.pattern_type is P.PREFIXED and name.startswith(a.name))
        )
    ]
    mine = [
        a
        for a in concerning
        if a.principal in ("User:*", request.principal) and a.host in ("*", request.client_host)
    ]
    if any(a.permission is Permission.DENY and a.operation in (operation, Op.ALL) for a in mine):
        return False
    enough = {operation, Op.ALL}
    if operation is Op.DESCRIBE:
        enough |= {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}
    if operation is Op.DESCRIBE_CONFIGS:
        enough |= {Op.ALTER_CONFIGS}
    if any(a.permission is Permission.ALLOW and a.operation in enough for a in mine):
        return True
    return open_ and not concerning


def test_random_acls_mean_what_a_plain_reading_of_them_means():
    rng = random.Random(7)
    names = ["*", "a", "ab", "abc", "b"]
    for _ in range(300):
        drawn = [
            (TOPIC, TOPIC, ResourceType.GROUP),
            (P.LITERAL, P.PREFIXED),
            names,
            ("User:alice", "User:bob", "User:*"),
            ("*", "10.0.0.1", "10.0.0.2"),
            [Op.ALL, *OPERATIONS[TOPIC]],
            (Permission.ALLOW, Permission.ALLOW, Permission.DENY),
        ]
        acls = {Acl(*map(rng.choice, drawn)) for _ in range(rng.randrange(8))}
        open_ = rng.random() < 0.3
        option = {"allow.everyone.if.no.acl.found": str(open_)}
        asked = authorizer(*acls, **option)
        for operation, name in itertools.product(OPERATIONS[TOPIC], ["a", "ab", "abcd", "c", "*x"]):
            expected = plain_reading(acls, asking(), operation, name, open_=open_)
            allows = asked.allows(asking(), operation, TOPIC, name)
            assert allows is expected, (acls, operation, name)


# ------------------------------------------------------------------ the set, and filters


def test_acls_are_found_as_long_as_they_are_there():
    acls = Acls()
    members = [acl(), acl(Op.WRITE), acl(name="ord", prefixed=True), acl(name="o", prefixed=True)]
    for each in (*members, *members):
        acls.add(each)
    assert sorted(acls, key=members.index) == members
    assert set(acls.concerning(TOPIC, "orders")) == set(members)
    for each in members:
        acls.remove(each)
        assert each not in acls
    assert list(acls) == []
    assert not acls._by_pattern
    assert not acls._prefix_lengths[TOPIC]


ANY = AclFilter(ResourceType.ANY, P.ANY, None, None, None, Op.ANY, Permission.ANY)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {"literal", "prefix", "wild", "group"}),
        ({"resource_type": TOPIC}, {"literal", "prefix", "wild"}),
        ({"name": "orders"}, {"literal"}),
        ({"name": "orders", "pattern_type": P.MATCH}, {"literal", "prefix", "wild"}),
        ({"name": "ord", "pattern_type": P.PREFIXED}, {"prefix"}),
        ({"name": "orders", "pattern_type": P.PREFIXED}, set()),
        ({"pattern_type": P.LITERAL}, {"literal", "wild", "group"}),
        ({"principal": "User:bob"}, {"group"}),
        ({"host": "10.0.0.1"}, set()),
        ({"operation": Op.WRITE}, {"wild"}),
        ({"permission": Permission.DENY}, {"prefix"}),
    ],
)
def test_filters(fields, found):
    acls = {
        "literal": acl(),
        "prefix": acl(name="ord", prefixed=True, deny=True),
        "wild": acl(Op.WRITE, name="*"),
        "group": acl(resource_type=ResourceType.GROUP, name="g", principal="User:bob"),
    }
    wanted = replace(ANY, **fields)
    assert {name for name, each in acls.items() if wanted.matches(each)} == found


def test_a_record_has_the_whole_acl():
    for each in (acl(), acl(name="ord", prefixed=True, deny=True, host="h")):
        assert Acl.of_record(each.record_fields()) == each
