"""Names whose bytes are not UTF-8, which Python gives a command as surrogates."""

from __future__ import annotations

import os

import pytest

from broker_sim import LocalCluster
from broker_sim.cli.main import main

NAMES = [os.fsdecode(b"a\xe4"), "größe".encode().decode("ascii", "surrogateescape")]
COMMANDS = [
    "topics create --topic NAME",
    "topics create --topic t --config retention.ms=NAME",
    "topics describe --topic NAME",
    "topics alter --topic NAME --partitions 3",
    "topics delete --topic NAME",
    "groups describe --group NAME",
    "groups delete --group NAME",
    "groups delete-offsets --group NAME --topic t",
    "groups reset-offsets --group NAME --all-topics --to-earliest --execute",
    "transactions describe --transactional-id NAME",
    "transactions describe-producers --topic NAME --partition 0",
    "transactions find-hanging --topic NAME",
    "transactions abort --topic NAME --partition 0 --start-offset 0",
    "produce --topic NAME",
    "consume --topic NAME --from-beginning",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("broker")) as cluster:
        found = ["--bootstrap-server", cluster.bootstrap_servers]
        assert main(["topics", "create", "--topic", "t", *found]) == 0
        yield found


@pytest.mark.parametrize("name", NAMES, ids=["bytes", "locale"])
@pytest.mark.parametrize("words", COMMANDS)
def test_a_name_that_is_not_utf8_ends_a_command_with_one_line(words, name, server, capsys):
    capsys.readouterr()
    assert main([word.replace("NAME", name) for word in words.split()] + server) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"broker_sim: the name {name!r} is not UTF-8, as Kafka's names are")
