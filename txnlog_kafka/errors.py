"""Errors between a client and its brokers, distinguished by the action of the caller.

    TxnLogError
    ├─ OptionError                 wrong option: name, value, allowed values
    ├─ RemoteProtocolError         the peer's bytes are not an answer
    │                              └─ SecurityRefused  a certificate or a login was refused
    ├─ BrokerError                 ├─ RetriableError   the same request may succeed later
    │                              ├─ AbortableError   this transaction is lost, the next may work
    │                              └─ FatalError       asking again cannot help
    │                                 └─ ProducerFenced, UnknownTopic, RecordRefused
    ├─ CommitStateUnknown          EndTxn sent and no answer: ask the coordinator, never guess
    ├─ TransactionTimedOut         the broker aborted it: transaction.timeout.ms is too short
    ├─ StagedBatchesInvalid        the bytes read back differ from the staged bytes
    ├─ DataLoss                    ├─ OffsetOutOfRange  └─ CorruptData
    ├─ WrongCluster                another cluster than before, or than the checkpoint's
    ├─ OldMessageFormat            records older than Kafka 0.11
    └─ DeadlineExceeded            how long, doing what, last error

`txnlog_spark.errors` has these errors and the connector's. Every class carries a stable
`condition`, which is part of the message. Every message says what happened, the ids involved and
what to do; a command that helps is a line of its own, by `do_this`. All errors survive pickling
between Spark's processes.
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
"""Command that prints cause and remedy of an error; it is the connector's, because one package has
both."""
BROKERS = "--bootstrap-server HOST:PORT"
"""Option by which a command reaches the brokers, until a client fills it in (`name_brokers`)."""
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
    """Return True if an option's value may be a password or a key, which no message may show."""
    name = option_name.lower()
    return name in _SECRET_NAMES or any(word in name for word in _SECRET_WORDS)


def do_this(command: str, when: str = "") -> str:
    """Return a command to paste, as a part of a message: the error prints it on a line at its end.

    `when` is a condition that a person has to check first, such as "if the output has the batch".
    """
    return f"\nDo this{when and ' '}{when}: {command}\n"


def parted(message: str) -> tuple[str, tuple[str, ...]]:
    """Return the message without its commands, and the commands, each once."""
    commands: list[str] = _COMMAND.findall(message)
    return _COMMAND.sub("", message), tuple(dict.fromkeys(commands))


class TxnLogError(Exception):
    """Base class of all errors of the connector. `condition` is a stable name for programs; the
    text is for people.

    Remedy: do what the text says.
    """

    condition = "TXNLOG_ERROR"
    commands: tuple[str, ...] = ()
    """Lines with a command to paste, see `do_this`."""
    is_on_own_line = False
    """True once the error is handed to Spark, which shows it at the end of a long line."""

    def __init__(self, message: str) -> None:
        text, self.commands = parted(message)
        super().__init__(f"[{self.condition}] {text}")

    @property
    def text(self) -> str:
        """Message without the lines that follow it in print, for use in another message."""
        text: str = self.args[0]
        return text

    def __str__(self) -> str:
        """Return the text, the command that prints cause and remedy, and the commands to paste."""
        start = "\n" if self.is_on_own_line else ""
        return "\n".join([f"{start}{self.text} ({EXPLAIN} {self.condition})", *self.commands])

    def name_brokers(self, option: str) -> None:
        """Complete the commands with the option that names the brokers."""
        self.commands = tuple(each.replace(BROKERS, option) for each in self.commands)

    def with_advice(self, text: str) -> Self:
        """Return this error with text that only a caller knows at its end; raise it `from None`."""
        advice, commands = parted(text)
        error = _rebuild(type(self), f"{self.text}. {advice}", dict(self.__dict__))
        error.commands += commands
        return error.with_traceback(self.__traceback__)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state, so that subclasses may have any constructor."""
        return _rebuild, (type(self), self.text, dict(self.__dict__))


class OptionError(TxnLogError):
    """An option is wrong or unsupported. The text has its name, its value and the allowed values.

    Remedy: set the option as the text says. If the option is unknown, correct its name or remove
    it.
    """

    condition = "TXNLOG_OPTION"

    def __init__(self, name: str, value: object, allowed: str) -> None:
        """`value` is None if there is no value to show: the option is not set, or another part is
        wrong."""
        shown = HIDDEN if value is not None and is_secret(name) else value
        super().__init__(
            f"option {name}: {allowed}" if shown is None else f"option {name}={shown!r}: {allowed}"
        )
        self.name = name
        self.value = shown
        self.allowed = allowed


class RemoteProtocolError(TxnLogError):
    """The broker's answer is invalid: wrong bytes, missing parts, or no common version.

    Remedy: check that the address is a listener of a Kafka broker, and that the broker's version is
    supported.
    """

    condition = "TXNLOG_PROTOCOL.REMOTE"


class SecurityRefused(RemoteProtocolError):
    """Broker and client do not trust each other: a certificate, a login or the security protocol is
    wrong.

    The text names the option to check. Another try without a change does not help.

    Remedy: correct the option that the text names, and start the query again.
    """

    condition = "TXNLOG_SECURITY"


class BrokerError(TxnLogError):
    """A broker refused a request. `code` is Kafka's number, `code_name` Kafka's name.

    Remedy: look up the name of Kafka's error, which is at the end of the text.
    """

    condition = "TXNLOG_BROKER"

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message}: {error_name(code)} ({int(code)})")
        self.code = int(code)
        self.code_name = error_name(code)


class RetriableError(BrokerError):
    """A broker refused a request, but the same request may succeed later. The client has repeated
    the request until its timeout.

    Remedy: start the query again when the brokers work again.
    """

    condition = "TXNLOG_BROKER.RETRIABLE"


class AbortableError(BrokerError):
    """The brokers cannot commit this transaction. A new transaction with a new producer epoch may
    succeed.

    Remedy: start the query again: it writes the same batch in a new transaction.
    """

    condition = "TXNLOG_BROKER.ABORTABLE"


class FatalError(BrokerError):
    """A broker refused a request, and sending it again does not help.

    Remedy: do what the text says. For ..._AUTHORIZATION_FAILED, grant this user the operation that
    the text names. For any other error, look up the name of Kafka's error, which is at the end of
    the text, and remove its cause.
    """

    condition = "TXNLOG_BROKER.FATAL"


class ProducerFenced(FatalError):
    """Another driver has taken over the transactional id with a newer epoch. This driver has
    stopped, and has written nothing since.

    Remedy: if the two drivers run the same query, stop one driver. If they run two queries, give
    each query its own transactional id.
    """

    condition = "TXNLOG_PRODUCER_FENCED"


class UnknownTopic(FatalError):
    """A topic does not exist and was not created in time. `topics` names all missing topics.

    Remedy: create the topic, or correct its name.
    """

    condition = "TXNLOG_UNKNOWN_TOPIC"

    def __init__(self, code: int, message: str, *, topics: tuple[str, ...] = ()) -> None:
        super().__init__(code, message)
        self.topics = topics


class RecordRefused(FatalError):
    """A partition leader refused records because of their content: size, timestamp, CRC, policy.

    Remedy: filter the row out, or raise the limit that the text names (kafka.max.request.size and
    the topic's max.message.bytes).
    """

    condition = "TXNLOG_RECORD_REFUSED"


class TransactionTimedOut(TxnLogError):
    """The coordinator aborted the transaction: it was open longer than transaction.timeout.ms.

    No record of the transaction is visible. With the same timeout, the same batch would time out
    again.

    Remedy: raise kafka.transaction.timeout.ms to the value in the text, and start the query: it
    then commits the same batch once. maxOffsetsPerTrigger makes later batches smaller, but not this
    batch.
    """

    condition = "TXNLOG_TRANSACTION_TIMED_OUT"


class CommitStateUnknown(TxnLogError):
    """The brokers did not answer EndTxn(commit), so the batch may be committed or not.

    The connector treats the commit neither as failed nor as done, and sends no abort. The next
    start calls InitProducerId and reads the stable progress, which says whether the batch is
    committed.

    Remedy: start the query again: it asks the brokers whether the batch was committed.
    """

    condition = "TXNLOG_COMMIT_STATE_UNKNOWN"

    def __init__(self, message: str, *, transactional_id: str = "", batch_id: int = -1) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.batch_id = batch_id


class StagedBatchesInvalid(TxnLogError):
    """The driver cannot read the staged batches as the tasks wrote them: torn file, wrong CRC.

    Remedy: start the query again: it stages the batch again. With stagingLocation, check that
    executors and driver share this location, and that only one driver runs.
    """

    condition = "TXNLOG_STAGED_BATCHES_INVALID"


class DataLoss(TxnLogError):
    """Records that the query must read are gone. The text says which records, and the remedy.

    Remedy: to continue with the remaining records, set failOnDataLoss=false. Set the option on the
    reader if the text names an input topic, on the writer if the text names the output topic. The
    lost records are then missing in the output, and a recreated topic is read from its beginning.
    Remove the option after the next committed batch.
    """

    condition = "TXNLOG_DATA_LOSS"


class OffsetOutOfRange(DataLoss):
    """An offset that the query must read is outside the range of the partition's log.

    Remedy: to continue with the remaining records, set failOnDataLoss=false on the reader. The lost
    records are then missing in the output. Remove the option after the next committed batch.
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
            "go on with the records that are left, or start a new checkpoint"
        )
        self.topic = topic
        self.partition = partition
        self.start_offset = start_offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class CorruptData(DataLoss):
    """A broker reports, or sends, records whose CRC is wrong.

    Remedy: restore the partition from a replica. Or start a new checkpoint whose startingOffsets
    begin after the damage.
    """

    condition = "TXNLOG_DATA_LOSS.CORRUPT"


class WrongCluster(TxnLogError):
    """The offsets or the checkpoint belong to another cluster than the connected cluster. For
    example, another cluster has taken over the addresses of the brokers.

    Remedy: set kafka.bootstrap.servers to the cluster of the checkpoint, or start a new checkpoint.
    If source and sink are on two clusters, remove group.id.
    """

    condition = "TXNLOG_WRONG_CLUSTER"


class OldMessageFormat(TxnLogError):
    """A topic has records of message format v0 or v1 (before Kafka 0.11). Brokers do not convert
    these records, and the connector cannot read them.

    Remedy: run a batch job once that reads these records with format('kafka') and writes them to
    the output. Then start a new checkpoint whose startingOffsets begin after these records.
    """

    condition = "TXNLOG_OLD_MESSAGE_FORMAT"


class DeadlineExceeded(TxnLogError):
    """An operation was not done in time. The text has the time, the operation and the last error.

    Remedy: look at the last error in the text. If the brokers are only slow, raise
    kafka.default.api.timeout.ms.
    """

    condition = "TXNLOG_DEADLINE_EXCEEDED"

    def __init__(self, doing: str, waited_ms: int, last_error: str) -> None:
        super().__init__(f"{doing} was not done within {waited_ms} ms; last error: {last_error}")
        self.doing = doing
        self.waited_ms = waited_ms
        self.last_error = last_error
