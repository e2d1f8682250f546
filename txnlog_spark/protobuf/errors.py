"""What can go wrong with Protobuf, beside a wrong option (`OptionError`)."""

from __future__ import annotations

from txnlog_spark.errors import TxnLogError


class ProtobufSchemaError(TxnLogError):
    """A descriptor file or a message in it has no Spark type, or does not fit the column.

    Remedy: make the file with `protoc --include_imports --descriptor_set_out=FILE`, name a message
    that is in it, and give the column the fields and types of the message.
    """

    condition = "TXNLOG_PROTOBUF.SCHEMA"


class UnencodableMessage(TxnLogError):
    """A column holds a value that its Protobuf field cannot hold.

    Remedy: cast or filter the column that the text names before it is written.
    """

    condition = "TXNLOG_PROTOBUF.UNENCODABLE"
