"""`sasl.jaas.config` as users write it, and what is not one."""

from __future__ import annotations

import pytest

from txnlog_kafka.wire.jaas import JaasError, parse_jaas

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


USER = {"username": "u", "password": "p"}


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (f'{SCRAM} required username="u" password="p";', "ScramLoginModule", USER),
        (f' shaded.{SCRAM} REQUIRED\n username = "u"\n password="p" ;\n', "ScramLoginModule", USER),
        (r'a.B required username="a\"b;=c" k="\\ ä";', "B", {"username": 'a"b;=c', "k": "\\ ä"}),
        ("a.B required username=u name='k f';", "B", {"username": "u", "name": "k f"}),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "IAMLoginModule", {}),
        ('a.B required extension_pool="";', "B", {"extension_pool": ""}),
        ('// of the team\n/* two\nlines */a.B/**/required // c\r username="u"/*;*/;// c', "B",
         {"username": "u"}),
        ('a.B required username="http://u/*" /* "x */ k=\'/\';/* not closed', "B",
         {"username": "http://u/*", "k": "/"}),
        ("a.B required password=p//q;\n;", "B", {"password": "p"}),
    ],
)  # fmt: skip
def test_a_login_module_is_a_name_and_options(text, name, options):
    module = parse_jaas(text)
    assert (module.name, dict(module.options)) == (name, options)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a login module such as"),
        ("hunter2", "a login module such as"),
        ('a.B required password="hunter2"', "semicolon"),
        ('a.B required password="hunter2;', "not closed"),
        ("a.B required password=hunter/2;", "/ begins a comment"),
        ("a.B required /* password=hunter2;", "a login module such as"),
        ("/*/a.B required;", "a login module such as"),
        ("a.B required password;", "name=value"),
        ("a.B required password=;", "name=value"),
        ('a.B required "password"="hunter2";', "name=value"),
        ("a.B password=hunter2;", "come first"),
        ("'a.B' required;", "come first"),
        ("a.B required; c.D required;", "one login module only"),
        ("a.B required password=hunter2 password=b;", "password is there twice"),
    ],
)
def test_what_is_none_says_why_and_repeats_no_value(text, why):
    with pytest.raises(JaasError) as caught:
        parse_jaas(text)
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)
