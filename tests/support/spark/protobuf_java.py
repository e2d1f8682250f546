"""protobuf-java, which Spark's protobuf functions stand on, in a process of its own.

Spark's jar with these functions was not to be had from Maven Central for any version. The program
`java/SparkProtobuf.java` reads and writes Java's DynamicMessage by their rules instead.
"""

from __future__ import annotations

import shutil
import subprocess
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.harness.maven import Unavailable
from support.spark.spark_kafka_jars import find_jar

PROGRAM = Path(__file__).with_name("java") / "SparkProtobuf.java"
ARTIFACT = "com.google.protobuf:protobuf-java"
VERSIONS = ("4.33.0", "4.29.3")
"""Versions, the preferred one first."""


@dataclass(frozen=True)
class Answer:
    """Text that Java reads in a message, as `text_of` writes it, and the bytes that Java writes of
    it."""

    text: str
    written: bytes


def protobuf_java_jar() -> Path:
    """The jar, fetched once. Unavailable with Maven's reason, or without a JDK."""
    if shutil.which("javac") is None:
        raise Unavailable("protobuf-java cannot be driven: `javac` is not installed")
    return find_jar(ARTIFACT, VERSIONS)


def ask_java(
    jar: Path, descriptor_set: bytes, name: str, values: list[bytes]
) -> list[Answer | None]:
    """The answer to each value, None to one that Java refuses."""
    lines = [b64encode(descriptor_set).decode(), name]
    lines += [b64encode(value).decode() for value in values]
    done = subprocess.run(
        ["java", "-cp", str(jar), str(PROGRAM)],
        input="\n".join(lines) + "\n", capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    answers = done.stdout.splitlines()
    if done.returncode or len(answers) != len(values):
        raise RuntimeError(f"java ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [_answer(line) for line in answers]


def _answer(line: str) -> Answer | None:
    if line == "-":
        return None
    text, _, written = line.partition(" ")
    return Answer(b64decode(text).decode(), b64decode(written))


def text_of(value: Any) -> str:
    """An Arrow scalar as the program writes it."""
    type_ = value.type
    if not value.is_valid:
        return "null"
    if pa.types.is_struct(type_):
        return "{" + ",".join(f"{name}:{text_of(each)}" for name, each in value.items()) + "}"
    if pa.types.is_map(type_):
        pairs = [(text_of(each["key"]), text_of(each["value"])) for each in value.values]
        return "[" + ",".join(f"{key}={each}" for key, each in pairs) + "]"
    if pa.types.is_list(type_):
        return "[" + ",".join(text_of(each) for each in value.values) + "]"
    if pa.types.is_temporal(type_):
        return str(value.value)
    made = value.as_py()
    if pa.types.is_string(type_):
        return "s" + made.encode().hex()
    if pa.types.is_binary(type_):
        return "b" + made.hex()
    if pa.types.is_floating(type_):
        bits = pa.array([made], type_).view(f"uint{type_.bit_width}")[0].as_py()
        return f"f{bits:x}"
    return str(made).lower() if pa.types.is_boolean(type_) else str(made)
