"""`--command-config` of the commands: what is wrong with it is one line, and nothing is asked."""

from __future__ import annotations

import pytest

from broker_sim.cli.main import main

SERVER = ("--bootstrap-server", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client.id=x\n", "--command-config takes only security options"),
        ("security.protocol=TLS\n", "security.protocol='TLS'"),
        ("security.protocol=SSL\nssl.truststore.location=/no/store\n", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path, capsys, text, said):
    file = tmp_path / "client.properties"
    file.write_text(text)
    assert main(["topics", "list", *SERVER, "--command-config", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "--bootstrap-server" not in error


def test_a_file_that_is_not_there_and_a_path_beside_it(tmp_path, capsys):
    file = tmp_path / "none.properties"
    assert main(["topics", "list", *SERVER, "--command-config", str(file)]) == 2
    assert f"--command-config {file}: No such file" in capsys.readouterr().err
    words = ("--path", str(tmp_path), "--command-config", str(file))
    assert main(["topics", "list", *words]) == 2
    assert "--path has no security" in capsys.readouterr().err
