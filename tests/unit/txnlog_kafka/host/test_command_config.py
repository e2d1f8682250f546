"""`--command-config` of the progress tool: how it connects to a secured cluster."""

from __future__ import annotations

import pytest
from support.sockets.secured_broker import SecuredBroker

from txnlog_kafka.host.security import Security
from txnlog_spark.errors import OptionError
from txnlog_spark.tools.cli import EXIT_REFUSED, main
from txnlog_spark.tools.command_config import read_command_config

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


def read(file, *, is_embedded: bool = False) -> Security:
    return read_command_config(file, is_embedded=is_embedded).security


def test_the_file_has_kafkas_names_and_the_continued_lines_of_properties(config):
    security = read(config(LOGIN + JAAS.format("p").replace("required", "required \\\n ")))
    assert (security.protocol, security.mechanism) == ("SASL_PLAINTEXT", "PLAIN")
    assert dict(security.login_module.options) == {"username": "alice", "password": "p"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client.id=x", r"kafka\.client\.id: --command-config takes security options and"),
        ("security.protocol=TLS", r"kafka\.security\.protocol='TLS': PLAINTEXT or SSL"),
        (LOGIN, r"kafka\.sasl\.jaas\.config"),
        ("a=\\uzzzz", "not one of properties"),
    ],
)
def test_what_is_wrong_in_it_names_the_option(config, text, said):
    with pytest.raises(OptionError, match=said):
        read(config(text))


def test_an_embedded_broker_has_no_security(config):
    assert read(config("txnlog.fs.s3a.endpoint=a:1"), is_embedded=True).protocol == "PLAINTEXT"
    with pytest.raises(OptionError, match="an embedded broker has no security"):
        read(config("security.protocol=SSL"), is_embedded=True)


def test_the_options_of_a_store_are_read_and_its_secrets_not_shown(config):
    file = config("txnlog.fs.s3a.secret.key=hunter2\ntxnlog.fs.s3a.path.style.access=TRUE\n")
    storage = read_command_config(file, is_embedded=False).storage
    assert (storage["s3a.secret.key"], storage["s3a.path.style.access"]) == ("hunter2", "true")
    assert storage["s3a.connection.timeout"] == "30000"
    assert "hunter2" not in repr(storage)
    with pytest.raises(OptionError, match=r"txnlog\.fs\.s3a\.secret: "):
        read(config("txnlog.fs.s3a.secret=hunter2"))


def test_a_wrong_password_is_one_line_of_the_command(config, capsys):
    with SecuredBroker(mechanisms=("PLAIN",)) as broker:
        file = config(LOGIN + JAAS.format("hunter2"))
        code = main(arguments(file, "--bootstrap-server", broker.bootstrap_servers))
    said = capsys.readouterr().err
    assert code == EXIT_REFUSED
    assert "refused the login of user 'alice' by PLAIN" in said
    assert "hunter2" not in said
    assert said.count("\n") == 1
