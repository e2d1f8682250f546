"""`--command-config` of the progress tool: how it connects to a secured cluster."""

from __future__ import annotations

import pytest
from support.secured_broker import SecuredBroker
from support.socket_broker import answer_bytes, metadata_answer

from txnlog_spark.command_config import read_command_config
from txnlog_spark.errors import OptionError
from txnlog_spark.tools.cli import EXIT_REFUSED, main

LOGIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=plain\n"
JAAS = 'sasl.jaas.config=a.PlainLoginModule required username="alice" password="{}";\n'


def arguments(file, *where):
    where = where or ("--bootstrap-server", "a:1")
    group = ("--group", "g", "--query-id", "q", "--command-config", str(file))
    return ["progress", "show", *where, *group]


@pytest.fixture
def config(tmp_path):
    def write(text):
        file = tmp_path / "client.properties"
        file.write_text(text)
        return file

    return write


def test_the_file_has_kafkas_names_and_the_continued_lines_of_properties(config):
    security = read_command_config(
        config(LOGIN + JAAS.format("p").replace("required", "required \\\n "))
    )
    assert (security.protocol, security.mechanism) == ("SASL_PLAINTEXT", "PLAIN")
    assert dict(security.login_module.options) == {"username": "alice", "password": "p"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client.id=x", r"kafka\.client\.id: --command-config takes security options alone"),
        ("security.protocol=TLS", r"kafka\.security\.protocol='TLS': PLAINTEXT or SSL"),
        (LOGIN, r"kafka\.sasl\.jaas\.config"),
        ("a=\\uzzzz", "not one of properties"),
    ],
)
def test_what_is_wrong_in_it_names_the_option(config, text, said):
    with pytest.raises(OptionError, match=said):
        read_command_config(config(text))


def test_an_embedded_broker_needs_none(config, tmp_path, capsys):
    assert main(arguments(config(""), "--path", str(tmp_path))) == EXIT_REFUSED
    assert "an embedded broker has no security" in capsys.readouterr().err


def test_a_wrong_password_is_one_line_of_the_command(config, capsys):
    with SecuredBroker(lambda *_: None, mechanisms=("PLAIN",)) as broker:
        broker.react = lambda header, _: answer_bytes(header, metadata_answer(broker))
        file = config(LOGIN + JAAS.format("hunter2"))
        code = main(arguments(file, "--bootstrap-server", broker.bootstrap_servers))
    said = capsys.readouterr().err
    assert code == EXIT_REFUSED
    assert "refused the login of user 'alice' by PLAIN" in said
    assert "hunter2" not in said
    assert said.count("\n") == 1
