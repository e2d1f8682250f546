"""Answers that refuse any request, made from the definitions of the messages.

As in Kafka's `AbstractRequest.getErrorResponse`: an answer with an error of its own has that and
nothing else; in any other, each topic, partition or group of the request has the error.
"""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.handlers._forwarding import FORWARDED, refusal
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.schema import Field, Struct

CODES, TEXT = ("error_code", "partition_error_code"), "error_message"
INDEXES, NUMBERS = ("partition_index", "index", "partition"), ("resource_type", "producer_id")
SAID = "A rule of faults answered."


def can_say_error(answer: Struct) -> bool:
    """True if an answer of this kind has a place for an error code."""
    return any(
        field.name in CODES or (field.struct is not None and can_say_error(field.struct))
        for field in answer.fields
    )


def error_answer(request: Request, code: ErrorCode) -> Message | None:
    """Return the answer that says `code` of the request, or of each part of it; None if it has no
    place for one, such as Metadata 12 of all topics."""
    key = ApiKey(request.api_key)
    if key in FORWARDED:
        return refusal(request, code, SAID)
    answer = APIS[key].response()
    return answer if _refuse(answer, request.message, request.api_version, code) else None


def _refuse(answer: Any, asked: Any, version: int, code: ErrorCode) -> bool:
    """Fill an answer, or a part of one, for what was asked; return True if it says the code."""
    here = {field.name: field for field in answer.STRUCT.untagged(version)}
    for name, field in here.items():  # texts that may not be null; all else has its default
        if getattr(answer, name) is None and field.kind in ("string", "bytes"):
            setattr(answer, name, "" if field.kind == "string" else b"")
    codes = here.keys() & CODES
    if codes:
        said = dict.fromkeys(codes, int(code)) | ({TEXT: SAID} if TEXT in here else {})
        for name, value in said.items():
            setattr(answer, name, value)
        return True
    says = False
    for name, field in here.items():
        if field.is_array and field.struct is not None and can_say_error(field.struct):
            parts = []
            for each in _asked_parts(asked, field, version):
                part = getattr(type(answer), field.kind)()
                _copy_names(part, each, version)
                says |= _refuse(part, each, version, code)
                parts.append(part)
            setattr(answer, name, parts)
    return says


def _asked_parts(asked: Any, field: Field, version: int) -> list[Any]:
    """Return the elements of the request that the elements of an answer's array stand for: those
    of the array of the same name, or of the first one that has any."""
    if not hasattr(type(asked), "STRUCT"):
        return []
    arrays = [each for each in asked.STRUCT.untagged(version) if each.is_array]
    same = [each for each in arrays if each.name == field.name]
    return list(next(filter(None, (getattr(asked, each.name) for each in same or arrays)), ()))


def _copy_names(part: Any, asked: Any, version: int) -> None:
    """Copy what names a part: texts and ids of the same name, and the partition's number; or the
    element itself if it is a text or a number."""
    here = {field.name: field.kind for field in part.STRUCT.untagged(version) if not field.is_array}
    index = next((name for name in INDEXES if name in here), None)
    if not hasattr(type(asked), "STRUCT"):
        name = index or next(n for n, kind in here.items() if kind == "string" and n != TEXT)
        setattr(part, name, asked)
        return
    for name, kind in here.items():
        if name in asked.DEFAULTS and (kind in ("string", "uuid") or name in NUMBERS):
            setattr(part, name, getattr(asked, name))
    if index is not None:
        setattr(part, index, next(getattr(asked, n) for n in INDEXES if n in asked.DEFAULTS))
