"""The broker's image and compose.yaml, without a container: packages, commands, listeners, ports.

No container is built or run here: the tests read the files.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import sys
from importlib import metadata
from typing import Any

import pytest
import yaml
from tidy.tree import ROOT, read_tree

from broker_sim.__main__ import _overrides, _parser
from broker_sim.core.config import BrokerConfig
from broker_sim.core.endpoint import read_listeners, read_registry

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = [name for name in SERVICES if name != "registry"]
OWN = {"broker_sim", "txnlog_kafka"}


def instructions() -> list[tuple[str, str]]:
    """(instruction, what follows it), with continued lines put together."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (line.split()[0], line.partition(" ")[2].strip())
        for line in text.splitlines()
        if line.strip()
    ]


def values(name: str) -> list[str]:
    return [value for instruction, value in instructions() if instruction == name]


def imported() -> set[str]:
    """Top packages of others that the broker imports, anywhere in a function as well."""
    found = set()
    for source in read_tree(*sorted(OWN)).values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    tops = {name.partition(".")[0] for name in found}
    return tops - set(sys.stdlib_module_names) - OWN


EXTRAS = {"aws_msk_iam_sasl_signer", "jks", "jwt"}
"""Packages of the distribution's extras `msk`, `stores` and `oauth`."""


def test_the_image_has_the_packages_that_the_broker_imports_and_no_pyspark() -> None:
    assert [value for value in values("RUN") if "--no-cache-dir /wheels/*.whl" in value] != []
    by_import = metadata.packages_distributions()
    needed = {by_import[name][0].lower() for name in imported() - EXTRAS}
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    of_wheel = set(re.findall(r"^[\w-]+", parser["options"]["install_requires"], re.MULTILINE))
    # Columns of the connector are numpy's, also on a platform with a PySpark of its own.
    assert of_wheel - {"numpy"} == needed


def test_the_image_is_built_from_what_the_wheel_is_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n*\n")[1]
    sent = set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert sent == set(re.findall(r"^WHEEL_SOURCES := (.*)$", makefile, re.MULTILINE)[0].split())
    assert all((ROOT / name).exists() for name in sent)


def test_the_broker_of_the_image_is_not_root_and_keeps_its_data_in_a_volume() -> None:
    (user,) = values("USER")
    (volume,) = values("VOLUME")
    assert int(user) > 0
    assert f"--uid {user} " in DOCKERFILE
    assert f"install --directory --owner=broker --group=broker {volume}" in DOCKERFILE
    assert [name for name, _ in instructions()].count("HEALTHCHECK") == 1


def started(words: list[str]) -> tuple[Any, BrokerConfig]:
    parsed = _parser().parse_args(words)
    assert parsed.command == "start"
    return parsed, BrokerConfig(_overrides(parsed))


def test_the_command_of_the_image_is_one_that_the_broker_takes() -> None:
    (entry,) = map(json.loads, values("ENTRYPOINT"))
    (command,) = map(json.loads, values("CMD"))
    assert entry == ["python", "-m", "broker_sim"]
    parsed, config = started(command)
    assert [str(parsed.data_dir)] == values("VOLUME")
    (listener,) = read_listeners(config)
    (exposed,) = values("EXPOSE")
    assert {int(port) for port in exposed.split()} == {listener.bound.port, parsed.metrics_port}
    (check,) = values("HEALTHCHECK")
    assert f"127.0.0.1:{parsed.metrics_port}/metrics" in check
    ast.parse(json.loads(check.partition("CMD ")[2])[2])


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_of_compose_is_found_from_the_host_and_from_other_containers(name: str) -> None:
    service = SERVICES[name]
    network = SERVICES["registry"] if "network_mode" in service else service
    parsed, config = started(shlex.split(service["command"]))
    inside, host = read_listeners(config)
    assert (inside.name, host.name) == ("PLAINTEXT", "HOST")
    names = {name, *network.get("networks", {}).get("default", {}).get("aliases", ())}
    assert inside.advertised.host in names
    assert host.advertised.host == "localhost"
    for each in (inside, host):
        assert each.bound.host == "0.0.0.0"
        assert each.bound.port == each.advertised.port
    assert {host.bound.port, parsed.metrics_port} <= published(network)
    assert f"{parsed.data_dir}" in [each.partition(":")[2] for each in service["volumes"]]


def published(service: dict[str, Any]) -> set[int]:
    """Ports of the host, which are those in the container, on loopback alone."""
    found: set[int] = set()
    for each in service["ports"]:
        address, outside, within = each.split(":")
        assert (address, outside) == ("127.0.0.1", within)
        first, _, last = within.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_the_brokers_of_the_cluster_share_the_network_of_their_registry() -> None:
    """The registry listens on loopback alone."""
    registry = _parser().parse_args(shlex.split(SERVICES["registry"]["command"]))
    members = [name for name, each in SERVICES.items() if each.get("profiles") == ["cluster"]]
    members.remove("registry")
    assert len(members) == 3
    nodes, ports = set(), []
    for name in members:
        service = SERVICES[name]
        assert service["network_mode"] == "service:registry"
        assert not {"ports", "networks"} & service.keys()
        parsed, config = started(shlex.split(service["command"]))
        registry_at = read_registry(config)
        assert registry_at is not None
        assert (registry_at.host, registry_at.port) == ("127.0.0.1", registry.port)
        nodes.add(config.integer("node.id"))
        ports += [each.bound.port for each in read_listeners(config)] + [parsed.metrics_port]
        inside, _ = read_listeners(config)
        assert f"127.0.0.1', {inside.bound.port})" in service["healthcheck"]["test"][3]
    assert nodes == {0, 1, 2}
    assert len(ports) == len(set(ports)) == 9


def test_every_service_of_compose_is_the_image_of_this_folder() -> None:
    assert SERVICES
    for service in SERVICES.values():
        assert (service["build"], service["image"]) == (".", "txnlog-broker")
        assert {each.partition(":")[0] for each in service["volumes"]} <= set(COMPOSE["volumes"])
