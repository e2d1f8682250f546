"""Parts of a JSON Schema by their pointers, and the references between them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote

from txnlog_spark.errors import JsonSchemaError


class Part(NamedTuple):
    """A part of a schema, its pointer, and the references that led to it."""

    node: Any
    pointer: str
    references: tuple[str, ...] = ()

    def below(self, node: Any, *path: str | int) -> Part:
        """Return a part of this one."""
        names = (str(each).replace("~", "~0").replace("/", "~1") for each in path)
        return Part(node, "/".join((self.pointer, *names)), self.references)

    def listed(self, word: str) -> list[Part]:
        """Return the schemas of a word that has a list of them; [] without the word."""
        nodes = self.node.get(word, [])
        if not isinstance(nodes, list):
            raise JsonSchemaError(f"{self.pointer}/{word}", "a list of schemas is wanted")
        return [self.below(node, word, at) for at, node in enumerate(nodes)]

    def named(self, word: str) -> dict[str, Part]:
        """Return the schemas of a word that has one for each name; {} without the word."""
        nodes = self.node.get(word) or {}
        if not isinstance(nodes, dict):
            raise JsonSchemaError(f"{self.pointer}/{word}", "an object of schemas is wanted")
        return {name: self.below(node, word, name) for name, node in nodes.items()}


def referenced(root: Any, part: Part) -> Part:
    """Return what the `$ref` of the part leads to. JsonSchemaError where it leads nowhere."""
    reference, pointer = part.node["$ref"], part.pointer
    if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
        raise JsonSchemaError(pointer, f"{reference!r} is not a reference into this schema")
    if reference in part.references or reference == "#":
        raise JsonSchemaError(pointer, f"{reference} contains itself, which no Spark type does")
    node = root
    for each in unquote(reference[2:]).split("/"):
        name = each.replace("~1", "/").replace("~0", "~")
        node = _below(node, name)
        if node is None:
            raise JsonSchemaError(pointer, f"{reference} leads nowhere")
    return Part(node, reference, (*part.references, reference))


def _below(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        return node.get(name)
    if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
        return node[int(name)]
    return None
