"""What can be wrong with the formats of values, besides Avro (`txnlog_spark.avro.errors`)."""

from __future__ import annotations

from txnlog_spark.errors import TxnLogError


class JsonSchemaError(TxnLogError):
    """A JSON Schema says of a value what no Spark type says.

    `pointer` is the place in the schema, as a JSON pointer.

    Remedy: give the type yourself in the option value.schema, or read the value as binary.
    """

    condition = "TXNLOG_JSON_SCHEMA"

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"the JSON Schema has no Spark type at {pointer}: {problem}")
        self.pointer = pointer
        self.problem = problem


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
