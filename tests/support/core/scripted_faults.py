"""What a script has happen to one request, and the answers of a broker that refuses."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from support.core.broker_build import BrokerOnDisk

from broker_sim.core.config.security import AUTHORIZER
from txnlog_kafka.wire.error_codes import ErrorCode


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of the normal thing.

    `applied`: the broker carries it out. `code`: it answers this error; without one there is no
    answer. `sent` False: it certainly never left the client.
    """

    code: int | None = None
    applied: bool = False
    sent: bool = True
    retriable: bool = True


LOST = Fault()
"""The request never arrives; the client cannot know."""
ANSWER_LOST = Fault(applied=True)
"""It is carried out, the answer is lost."""
NOT_SENT = Fault(sent=False)
"""The connection was refused."""
MALFORMED = Fault(applied=True, retriable=False)
"""It is carried out; the answer is no answer."""


def refused(code: int) -> Fault:
    """Not carried out, answered with an error."""
    return Fault(code=code)


def applied_but(code: int) -> Fault:
    """Carried out, yet answered with an error."""
    return Fault(code=code, applied=True)


@functools.cache
def closed_broker() -> BrokerOnDisk:
    """One that lets nobody do anything."""
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
