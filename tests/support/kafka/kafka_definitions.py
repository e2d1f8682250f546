"""Kafka's definitions of its messages, out of the published kafka-clients, as facts alone.

`python -m support.kafka.kafka_definitions` writes `txnlog_kafka/wire/schemas` again: names, types,
versions, nullability, tags and defaults, one field a line, without Kafka's comments.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from support.brokers.apache_kafka import VERSION, jars

from txnlog_kafka.wire.messages import KNOWN_APIS

FOLDER = Path(__file__).resolve().parents[3] / "txnlog_kafka" / "wire" / "schemas"
RECORDS = ("ConsumerProtocolAssignment", "ConsumerProtocolSubscription")
"""Records that members of a group send each other, and that the broker reads."""
_OF_A_MESSAGE = ("type", "name", "apiKey", "validVersions", "flexibleVersions")
_OF_A_FIELD = (
    "name", "type", "versions", "nullableVersions", "taggedVersions", "tag", "default",
)  # fmt: skip
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


def derived(name: str, jar: Path) -> str:
    """The text of `name`.json, from the definition in kafka-clients."""
    with zipfile.ZipFile(jar) as archive:
        kafkas = archive.read(f"common/message/{name}.json").decode()
    definition = json.loads(_COMMENT.sub("", kafkas))
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(definition[key])}"
                     for key in _OF_A_MESSAGE if key in definition)  # fmt: skip
    return f'{{{head},\n "fields": {_fields(definition["fields"], common, 2)}}}\n'


def _fields(fields: list[dict[str, Any]], common: dict[str, Any], depth: int) -> str:
    lines = [" " * depth + _field(each, common, depth) for each in fields]
    return "[\n" + ",\n".join(lines) + "]" if lines else "[]"


def _field(field: dict[str, Any], common: dict[str, Any], depth: int) -> str:
    facts = {key: field[key] for key in _OF_A_FIELD if key in field}
    members = field.get("fields", common.get(field["type"].removeprefix("[]")))
    text = json.dumps(facts)
    if members is None:
        return text
    return f'{text[:-1]}, "fields": {_fields(members, common, depth + 2)}}}'


def all_derived() -> dict[str, str]:
    """The text of each file, by its name. Raises Unavailable."""
    names = [f"{api.name}{kind}" for api in KNOWN_APIS.values() for kind in ("Request", "Response")]
    jar = jars() / f"kafka-clients-{VERSION}.jar"
    return {f"{name}.json": derived(name, jar) for name in (*names, *RECORDS)}


if __name__ == "__main__":
    for name, text in all_derived().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
