"""Names and small text files of a partition's folder, as Kafka has them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Container

from broker_sim.core.effects import Storage

PARTITION_METADATA = "partition.metadata"
DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
TRUNCATION_SUFFIX = ".truncation"
_NAME_BYTES_MAX = 255
_TOPIC_ID = re.compile(r"^topic_id: (\S+)$", re.MULTILINE)


class InconsistentTopicId(ValueError):
    """The folder belongs to another topic of the same name."""


def directory_name(topic: str, partition: int) -> str:
    """The folder of a partition, such as `orders-0`."""
    return f"{topic}-{partition}"


def deleted_directory_name(topic: str, partition: int, topic_id: bytes) -> str:
    """Return the name that the folder gets before it is removed; a crash may leave it behind."""
    return _with_tail(topic, f"-{partition}.{topic_id.hex()}{DELETED_SUFFIX}")


def stray_directory_name(topic: str, partition: int, taken: Container[str]) -> str:
    """Return the name that a partition's folder gets if this broker does not host the partition.

    The name is that of `UnifiedLog.logStrayDirName`, but with the first number that is not taken.
    """
    number = 0
    while (name := _with_tail(topic, f"-{partition}.{number:032x}{STRAY_SUFFIX}")) in taken:
        number += 1
    return name


def _with_tail(topic: str, tail: str) -> str:
    return topic[: _NAME_BYTES_MAX - len(tail)] + tail


def truncation_name(offset: int) -> str:
    """The empty file that is there while the log is being truncated to the offset."""
    return f"{offset:020d}{TRUNCATION_SUFFIX}"


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """`partition.metadata`, version 0: the topic id in Kafka's text form (KIP-516)."""
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    return f"version: 0\ntopic_id: {text}".encode()


def decode_partition_metadata(data: bytes) -> bytes | None:
    """The topic id; None for text that is none."""
    found = _TOPIC_ID.search(data.decode(errors="replace"))
    if found is None:
        return None
    try:
        topic_id = base64.urlsafe_b64decode(found.group(1) + "==")
    except (binascii.Error, ValueError):
        return None
    return topic_id if len(topic_id) == 16 else None


def read_whole(storage: Storage, path: str) -> bytes | None:
    """A whole file of any size; None when absent."""
    size_bytes = storage.size_bytes(path)
    return None if size_bytes is None else storage.read(path, 0, size_bytes)
