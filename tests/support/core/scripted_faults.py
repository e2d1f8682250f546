"""Faults that a script gives to one request, and answers of a broker that refuses."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from support.core.broker_build import BrokerOnDisk

from broker_sim.core.config.security import AUTHORIZER
from txnlog_kafka.wire.error_codes import ErrorCode


@dataclass(frozen=True)
class Fault:
    """Fault of one request, instead of its normal course.

    `applied`: the broker carries the request out. `code`: the broker answers this error; without a
    code it does not answer. `sent` False: the request certainly never left the client.
    """

    code: int | None = None
    applied: bool = False
    sent: bool = True
    retriable: bool = True


LOST = Fault()
"""The request never arrives; the client cannot know."""
ANSWER_LOST = Fault(applied=True)
"""Request that is carried out, and whose answer is lost."""
NOT_SENT = Fault(sent=False)
"""The connection was refused."""
MALFORMED = Fault(applied=True, retriable=False)
"""Request that is carried out, and whose answer cannot be decoded."""


def refused(code: int) -> Fault:
    """Return a fault: the request is not carried out, and is answered with an error."""
    return Fault(code=code)


def applied_but(code: int) -> Fault:
    """Carried out, yet answered with an error."""
    return Fault(code=code, applied=True)


@functools.cache
def closed_broker() -> BrokerOnDisk:
    return BrokerOnDisk({"authorizer.class.name": AUTHORIZER})


def refusal(message: Any, version: int, code: int) -> Any:
    """An answer to somebody who may not ask for this, with another code for that."""
    broker = closed_broker()
    key = broker.send(message, version)
    answer = broker.asked.answers.pop(key)
    replace_codes(answer, code)
    return answer


def replace_codes(answer: Any, code: int) -> None:
    """Wherever an answer has an error."""
    for each in answer.STRUCT.fields:
        value = getattr(answer, each.name)
        if each.name.endswith("error_code") and value != ErrorCode.NONE:
            setattr(answer, each.name, int(code))
        elif each.struct is not None:
            for nested in value if isinstance(value, list) else [value] if value else []:
                replace_codes(nested, code)
