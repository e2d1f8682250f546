"""`kafka.sasl.jaas.config` as users of Kafka's Java clients have it: one login module, its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";

There is no JVM to load the module: its name says which mechanism the options are for. A prefix of
the package, as shaded jars have it, is ignored. No error has any of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

OPTION = "kafka.sasl.jaas.config"
PLAIN_MODULE = "PlainLoginModule"
SCRAM_MODULE = "ScramLoginModule"
OAUTH_MODULE = "OAuthBearerLoginModule"
IAM_MODULE = "IAMLoginModule"
MODULES: dict[str, frozenset[str]] = {
    PLAIN_MODULE: frozenset({"PLAIN"}),
    SCRAM_MODULE: frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"}),
    OAUTH_MODULE: frozenset({"OAUTHBEARER"}),
    IAM_MODULE: frozenset({"AWS_MSK_IAM"}),
}
"""Mechanisms of each login module, by the last part of its name."""

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""(?:(?P<double>"(?:\\.|[^"\\])*")|(?P<single>'(?:\\.|[^'\\])*')"""
    r"""|(?P<sign>[=;])|(?P<word>[^\s=;"'/]+))""",
    re.DOTALL,
)
_BETWEEN = re.compile(r"(?:\s|/\*.*?(?:\*/|\Z)|/(?!\*)[^\r\n]*)*", re.DOTALL)
"""Space, and comments: in Kafka's parser a slash outside of quotes always begins a comment."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


class JaasError(ValueError):
    """Text that is not one login module with options; the message contains nothing of the text."""


@dataclass(frozen=True, slots=True, repr=False)
class LoginModule:
    """Last part of a module's class name, and its options."""

    name: str
    options: Mapping[str, str]


def parse_jaas(text: str) -> LoginModule:
    """Return the one login module of a config. Raises JaasError."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("sign", ";"):
        raise JaasError('a login module such as ...PlainLoginModule required username="..." '
                        'password="..."; with the semicolon at its end; outside of quotes / begins '
                        "a comment")  # fmt: skip
    if ("sign", ";") in tokens[:-1]:
        raise JaasError("one login module only: there is a semicolon before the end")
    (kind, name), (flag_kind, flag) = tokens[:2]
    if kind != "word" or flag_kind != "word" or flag.lower() not in _FLAGS:
        raise JaasError("the class name of a login module and `required` come first")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise JaasError("each option is name=value, in quotes where the value has a space")
    for (key_kind, key), sign, (value_kind, value) in zip(*[iter(rest)] * 3, strict=True):
        if key_kind != "word" or sign != ("sign", "=") or value_kind == "sign":
            raise JaasError("each option is name=value, in quotes where the value has a space")
        if key in options:
            raise JaasError(f"the option {key} is there twice")
        options[key] = value
    return LoginModule(name.rpartition(".")[2], options)


def _end_of(skipped: re.Pattern[str], text: str, position: int) -> int:
    found = skipped.match(text, position)
    return position if found is None else found.end()


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return (kind, text) of each token, without quotes and escapes."""
    found: list[tuple[str, str]] = []
    position = 0
    while (position := _end_of(_BETWEEN, text, position)) < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError("a quote is not closed")
        position = match.end()
        kind = str(match.lastgroup)
        token = match.group(kind)
        if kind in ("double", "single"):
            token = _ESCAPE.sub(lambda m: _CONTROLS.get(m.group(1), m.group(1)), token[1:-1])
        found.append((kind, token))
    return found
