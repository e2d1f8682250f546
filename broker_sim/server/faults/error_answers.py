"""Answers that refuse any request, made from the definitions of the messages.

As in Kafka's `AbstractRequest.getErrorResponse`: an answer with an error of its own has that and
nothing else; in any other, each topic, partition or group of the request has the error.
"""

from __future__ import annotations

from typing import Any

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.schema import Field, Struct

CODES, TEXT = ("error_code", "partition_error_code"), "error_message"
SAID = "a rule of faults answered"


def can_say_error(answer: Struct) -> bool:
    """True if an answer of this kind has a place for an error code."""
    return any(
        field.name in CODES or (field.struct is not None and can_say_error(field.struct))
        for field in answer.fields
    )


def error_answer(key: int, version: int, request: Message, code: ErrorCode) -> Message:
    """Return the answer that says `code` of the request, or of each part of it."""
    response = APIS[ApiKey(key)].response
    answer = response()
    _refuse(answer, request, code, version)
    return answer


def _refuse(answer: Any, asked: Any, code: ErrorCode, version: int) -> None:
    """Fill an answer, or a part of one, for what was asked."""
    here = {field.name: field for field in answer.STRUCT.untagged(version)}
    _copy_names(answer, asked, here)
    codes = here.keys() & CODES
    if codes:
        for name in codes:
            setattr(answer, name, int(code))
        if TEXT in here:
            setattr(answer, TEXT, SAID)
        _fill_required(answer, here)
        return
    _fill_required(answer, here)
    parts = [field for field in here.values() if field.is_array and field.struct is not None]
    for field in parts:
        if field.struct is not None and can_say_error(field.struct):
            wanted = _asked_parts(asked, field, version)
            kind = getattr(type(answer), field.kind)
            made = [kind() for _ in wanted]
            for each, part in zip(made, wanted, strict=True):
                _refuse(each, part, code, version)
            setattr(answer, field.name, made)


def _asked_parts(asked: Any, field: Field, version: int) -> list[Any]:
    """Return the elements of the request that the elements of an answer's array stand for: those
    of the array of the same name, or of the first one that has any."""
    if not hasattr(type(asked), "STRUCT"):
        return []
    arrays = [each for each in asked.STRUCT.untagged(version) if each.is_array]
    same = [each for each in arrays if each.name == field.name]
    for each in same or arrays:
        found = getattr(asked, each.name)
        if found:
            return list(found)
    return []


def _copy_names(answer: Any, asked: Any, here: dict[str, Field]) -> None:
    """Copy what names the part: fields of the same name, or the element itself if it is one."""
    if not hasattr(type(asked), "STRUCT"):
        first = next(name for name in here if name not in CODES and not here[name].is_array)
        setattr(answer, first, asked)
        return
    for name, field in here.items():
        if name in asked.DEFAULTS and field.struct is None and not field.is_array:
            setattr(answer, name, getattr(asked, name))


def _fill_required(answer: Any, here: dict[str, Field]) -> None:
    """Give texts that may not be null a value; everything else has its default."""
    for name, field in here.items():
        if getattr(answer, name) is None and field.kind in ("string", "bytes"):
            setattr(answer, name, "" if field.kind == "string" else b"")
