"""Requests about rules, over HTTP: POST, GET and DELETE of `/faults`, in JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from broker_sim.server.faults.rules import FaultRules, RuleRefused
from broker_sim.server.http_server import Answer, HttpAnswer

PATH = "/faults"


def faults_answer(rules: FaultRules) -> Answer:
    """Return what answers requests about these rules."""

    def answer(method: str, path: str, body: bytes) -> HttpAnswer:
        if path != PATH and not path.startswith(PATH + "/"):
            return _said("404 Not Found", {"error": f"there is nothing but {PATH}"})
        named = path.removeprefix(PATH).removeprefix("/")
        if method == "GET" and not named:
            return _said("200 OK", rules.listed())
        if method == "POST" and not named:
            return _added(rules, body)
        if method == "DELETE":
            return _removed(rules, named)
        return _said("405 Method Not Allowed", {"error": f"{method} {path} is not a request"})

    return answer


def _added(rules: FaultRules, body: bytes) -> HttpAnswer:
    try:
        given = json.loads(body)
        if not isinstance(given, dict):
            raise RuleRefused("a rule is a JSON object")
        return _said("201 Created", asdict(rules.add(given)))
    except ValueError as error:
        return _said("400 Bad Request", {"error": str(error)})


def _removed(rules: FaultRules, named: str) -> HttpAnswer:
    if not named:
        rules.clear()
        return _said("200 OK", rules.listed())
    removed = rules.remove(int(named)) if named.isdecimal() else None
    if removed is None:
        return _said("404 Not Found", {"error": f"there is no rule {named}"})
    return _said("200 OK", removed)


def _said(status: str, said: Any) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(said) + "\n", "application/json")
