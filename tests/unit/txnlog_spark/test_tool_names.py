"""Names that the command line cannot read, or cannot print."""

from __future__ import annotations

import io
import os
import sys

import pytest

from txnlog_spark.tools import cli

SERVER = ["--bootstrap-server", "127.0.0.1:1"]
NAME = os.fsdecode(b"a\xe4")


@pytest.mark.parametrize(
    "words",
    [
        "progress show --group NAME --query-id q",
        "progress show --group g --query-id NAME",
        "progress show --group g --query-id q --transactional-id NAME",
        "progress show --checkpoint nowhere --sink NAME",
        "progress set --checkpoint nowhere --sink NAME --to-checkpoint",
        "check --group NAME",
        "check --input t --input NAME",
        "check --output NAME",
        "dead-letters show --topic NAME",
        "dead-letters replay --topic NAME",
        "dead-letters replay --topic t --to NAME",
    ],
)
def test_a_name_that_is_not_utf8_ends_a_command_with_one_line(words, capsys):
    assert cli.main([word.replace("NAME", NAME) for word in words.split()] + SERVER) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(r"txnlog_spark: the name 'a\udce4' is not UTF-8")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_the_encoding_of_a_c_locale_lacks_is_escaped(monkeypatch, form):
    monkeypatch.setattr(cli, "client_for", lambda connection: io.StringIO())
    monkeypatch.setattr(cli, "show", lambda *given: {"group": "größe"})
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["progress", "show", "--group", "g", "--query-id", "q", *SERVER, *form]) == 0
    out.seek(0)
    assert r"gr\xf6" in out.read() or form
