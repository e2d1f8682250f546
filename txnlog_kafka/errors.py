"""What can go wrong between a client and its brokers, distinguished by what the caller should do.

    TxnLogError
    ├─ OptionError                 wrong option: name, value, what is allowed
    ├─ RemoteProtocolError         the peer's bytes
    │                              └─ SecurityRefused  a certificate or a login was refused
    ├─ BrokerError                 ├─ RetriableError   the same request may succeed later
    │                              ├─ AbortableError   this transaction is lost, the next one may do
    │                              └─ FatalError       asking again cannot help
    │                                 └─ ProducerFenced, UnknownTopic, RecordRefused
    ├─ CommitStateUnknown          EndTxn sent and no answer: ask the coordinator, never guess
    ├─ TransactionTimedOut         the broker aborted it: transaction.timeout.ms is too short
    ├─ StagedBatchesInvalid        staged bytes are not what was staged
    ├─ DataLoss                    ├─ OffsetOutOfRange  └─ CorruptData
    ├─ OldMessageFormat            records of before Kafka 0.11
    └─ DeadlineExceeded            how long, doing what, last error

`txnlog_spark.errors` has these and the connector's. Every class carries a stable `condition`, which
is part of the message, and every message says what happened, the ids involved and what to do; a
command that helps is a line of its own, by `do_this`. All errors survive pickling between Spark's
processes.
"""

from __future__ import annotations

import re
from typing import Any, Self, TypeVar

from txnlog_kafka.wire.error_codes import error_name

E = TypeVar("E", bound="TxnLogError")


def _rebuild(cls: type[E], text: str, state: dict[str, Any]) -> E:
    error = cls.__new__(cls, text)
    error.__dict__.update(state)
    return error


EXPLAIN = "python -m txnlog_spark explain"
"""Command that prints cause and remedy of an error; the connector's, as one package has both."""
BROKERS = "--bootstrap-server HOST:PORT"
"""How a command reaches the brokers, until a client that knows them says it (`name_brokers`)."""
_COMMAND = re.compile(r"\n(Do this[^\n]*)\n")
HIDDEN = "..."
_SECRET_WORDS = ("password", "passphrase", "secret", "token", "jaas", "credential", "private")
_SECRET_NAMES = (
    "kafka.ssl.keystore.key",
    "kafka.ssl.keystore.certificate.chain",
    "txnlog.fs.s3a.access.key",
    "txnlog.fs.azure.account.key",
    "schema.registry.url",
    "basic.auth.user.info",
    "schema.registry.basic.auth.user.info",
)


def is_secret(option_name: str) -> bool:
    """Whether an option's value may be a password or a key, which no message may show."""
    name = option_name.lower()
    return name in _SECRET_NAMES or any(word in name for word in _SECRET_WORDS)


def do_this(command: str, when: str = "") -> str:
    """Return a command to paste, as a part of a message: the error prints it on a line at its end.

    `when` says what a person has to see first, such as "if the output has the batch".
    """
    return f"\nDo this{when and ' '}{when}: {command}\n"


def parted(message: str) -> tuple[str, tuple[str, ...]]:
    """Return the message without its commands, and the commands, each once."""
    commands: list[str] = _COMMAND.findall(message)
    return _COMMAND.sub("", message), tuple(dict.fromkeys(commands))


class TxnLogError(Exception):
    """The root. `condition` is a stable name for programs; the text is for people.

    Remedy: do what the text says; it names what is wrong.
    """

    condition = "TXNLOG_ERROR"
    commands: tuple[str, ...] = ()
    """The lines with a command to paste, see `do_this`."""
    is_on_own_line = False
    """True once the error is handed to Spark, which shows it at the end of a long line."""

    def __init__(self, message: str) -> None:
        text, self.commands = parted(message)
        super().__init__(f"[{self.condition}] {text}")

    @property
    def text(self) -> str:
        """The message without what follows it in print, to be made part of another one."""
        text: str = self.args[0]
        return text

    def __str__(self) -> str:
        """The text, the command that prints cause and remedy, and what to paste."""
        start = "\n" if self.is_on_own_line else ""
        return "\n".join([f"{start}{self.text} ({EXPLAIN} {self.condition})", *self.commands])

    def name_brokers(self, option: str) -> None:
        """Complete the commands with the option that names the brokers."""
        self.commands = tuple(each.replace(BROKERS, option) for each in self.commands)

    def with_advice(self, text: str) -> Self:
        """This error with more at its end, which only a caller knows; to be raised `from None`."""
        advice, commands = parted(text)
        error = _rebuild(type(self), f"{self.text}. {advice}", dict(self.__dict__))
        error.commands += commands
        return error.with_traceback(self.__traceback__)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state, so that subclasses may have any constructor."""
        return _rebuild, (type(self), self.text, dict(self.__dict__))


class OptionError(TxnLogError):
    """A wrong or unsupported option: which, what was given, what is allowed.

    Remedy: set the option as the text says, or remove one that is not known.
    """

    condition = "TXNLOG_OPTION"

    def __init__(self, name: str, value: object, allowed: str) -> None:
        """`value` None means that there is none to show: not set, or not what is wrong."""
        shown = HIDDEN if value is not None and is_secret(name) else value
        super().__init__(
            f"option {name}: {allowed}" if shown is None else f"option {name}={shown!r}: {allowed}"
        )
        self.name = name
        self.value = shown
        self.allowed = allowed


class RemoteProtocolError(TxnLogError):
    """The broker's answer cannot be: wrong bytes, missing parts, no common version.

    Remedy: see that the address is a listener of Kafka's, and that the broker's version is
    supported.
    """

    condition = "TXNLOG_PROTOCOL.REMOTE"


class SecurityRefused(RemoteProtocolError):
    """Broker and client do not trust each other: a certificate, a login, the security protocol.

    The text says which option to look at; asking again cannot help.

    Remedy: look at the option that the text names; then start the query again.
    """

    condition = "TXNLOG_SECURITY"


class BrokerError(TxnLogError):
    """A broker refused. `code` is Kafka's number, `code_name` Kafka's name.

    Remedy: look up Kafka's name of the error, which is at the end of the text.
    """

    condition = "TXNLOG_BROKER"

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message}: {error_name(code)} ({int(code)})")
        self.code = int(code)
        self.code_name = error_name(code)


class RetriableError(BrokerError):
    """The same request may succeed later.

    Remedy: start the query again when the broker is well; the client has asked until its time was
    over.
    """

    condition = "TXNLOG_BROKER.RETRIABLE"


class AbortableError(BrokerError):
    """This transaction cannot be committed; a new one with a new producer epoch may be.

    Remedy: start the query again: the same batch is done in a new transaction.
    """

    condition = "TXNLOG_BROKER.ABORTABLE"


class FatalError(BrokerError):
    """Asking again cannot help.

    Remedy: do what the text says; after ..._AUTHORIZATION_FAILED grant this user what it names.
    Else look up Kafka's name of the error, which is at the end of the text, and remove its cause.
    """

    condition = "TXNLOG_BROKER.FATAL"


class ProducerFenced(FatalError):
    """A newer epoch of the transactional id exists: this holder must stop and write nothing.

    Remedy: stop one of the two drivers; give two queries two transactional ids. Nothing was
    written since the other one took over.
    """

    condition = "TXNLOG_PRODUCER_FENCED"


class UnknownTopic(FatalError):
    """A topic does not exist and was not created in time. `topics` names all that are missing.

    Remedy: create the topic, or correct its name.
    """

    condition = "TXNLOG_UNKNOWN_TOPIC"

    def __init__(self, code: int, message: str, *, topics: tuple[str, ...] = ()) -> None:
        super().__init__(code, message)
        self.topics = topics


class RecordRefused(FatalError):
    """A partition leader refused records for what they are: size, timestamp, CRC, policy.

    Remedy: leave the row out, or raise the limit that the text names (kafka.max.request.size and
    the topic's max.message.bytes).
    """

    condition = "TXNLOG_RECORD_REFUSED"


class TransactionTimedOut(TxnLogError):
    """The coordinator aborted the transaction: it was open longer than transaction.timeout.ms.

    Nothing of it is visible. The same batch with the same timeout would end in the same way.

    Remedy: raise kafka.transaction.timeout.ms to what the text says and start the query: the same
    batch is then committed once. maxOffsetsPerTrigger makes later ones smaller.
    """

    condition = "TXNLOG_TRANSACTION_TIMED_OUT"


class CommitStateUnknown(TxnLogError):
    """EndTxn(commit) may or may not have been carried out.

    Never to be treated as failed or as done, and never followed by an abort: the next
    InitProducerId and the stable progress read decide.

    Remedy: start the query again: it asks the brokers.
    """

    condition = "TXNLOG_COMMIT_STATE_UNKNOWN"

    def __init__(self, message: str, *, transactional_id: str = "", batch_id: int = -1) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.batch_id = batch_id


class StagedBatchesInvalid(TxnLogError):
    """Staged batches cannot be read back as they were written: torn file, wrong CRC.

    Remedy: start the query again: the batch is done again. With stagingLocation, see that
    executors and driver share it, and that one driver runs.
    """

    condition = "TXNLOG_STAGED_BATCHES_INVALID"


class DataLoss(TxnLogError):
    """Records that should be read are gone. The text says which, and the remedy.

    Remedy: set failOnDataLoss=false to go on with what is left, a recreated topic from its
    beginning, or start a new checkpoint.
    """

    condition = "TXNLOG_DATA_LOSS"


class OffsetOutOfRange(DataLoss):
    """An offset lies outside what the partition holds.

    Remedy: set failOnDataLoss=false to go on with what is left, or start a new checkpoint.
    """

    condition = "TXNLOG_DATA_LOSS.OFFSET_OUT_OF_RANGE"

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        start_offset: int,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        super().__init__(
            f"offset {start_offset} of {topic}-{partition} is out of range: the partition holds "
            f"[{log_start_offset}, {log_end_offset}). Records were deleted (retention, "
            "DeleteRecords, a recreated topic) before they were read. Set failOnDataLoss=false to "
            "go on with what is left, or start a new checkpoint"
        )
        self.topic = topic
        self.partition = partition
        self.start_offset = start_offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class CorruptData(DataLoss):
    """A broker reports, or serves, bytes that fail their CRC.

    Remedy: restore the partition from a replica, or begin after the damage with startingOffsets
    and a new checkpoint.
    """

    condition = "TXNLOG_DATA_LOSS.CORRUPT"


class OldMessageFormat(TxnLogError):
    """Records of message format v0 or v1, which brokers serve as they were written.

    Remedy: read such records once with format('kafka'), and begin after them with startingOffsets
    and a new checkpoint.
    """

    condition = "TXNLOG_OLD_MESSAGE_FORMAT"


class DeadlineExceeded(TxnLogError):
    """Not done in time. The text says how long, doing what, and the last error.

    Remedy: look at the last error in the text. When brokers are only slow, raise
    kafka.default.api.timeout.ms.
    """

    condition = "TXNLOG_DEADLINE_EXCEEDED"

    def __init__(self, doing: str, waited_ms: int, last_error: str) -> None:
        super().__init__(f"{doing} was not done within {waited_ms} ms; last error: {last_error}")
        self.doing = doing
        self.waited_ms = waited_ms
        self.last_error = last_error
