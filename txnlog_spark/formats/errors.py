"""Errors of formats and schema registries. A wrong option is an `OptionError`."""

from __future__ import annotations

from txnlog_spark.errors import TxnLogError


class AvroSchemaError(TxnLogError):
    """An Avro schema is invalid, has no Spark type, or does not fit the other Avro schema or the
    column.

    Remedy: correct the schema or the column that the text names, or cast the column to the type of
    the schema.
    """

    condition = "TXNLOG_AVRO.SCHEMA"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class MalformedAvro(TxnLogError):
    """The bytes of a value are not an Avro value of its schema. `row` counts from 0 in the Arrow
    batch.

    Remedy: read with the schema that the value was written with. Or set mode=PERMISSIVE: malformed
    values become null, and you can filter these rows.
    """

    condition = "TXNLOG_AVRO.MALFORMED"

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(
            f"row {row} of an Arrow batch: {problem}. With the option mode=PERMISSIVE a malformed "
            "value becomes null (a struct of nulls); topic, partition and offset selected with it "
            "say which record it is of"
        )
        self.row = row
        self.problem = problem


class UnencodableValue(TxnLogError):
    """A column has a value that its Avro schema cannot hold.

    Remedy: cast or filter the column that the text names before to_avro, or widen the schema.
    """

    condition = "TXNLOG_AVRO.UNENCODABLE"


class ProtobufSchemaError(TxnLogError):
    """A descriptor file cannot be used, or a message in it has no Spark type or does not fit the
    column.

    Remedy: make the file with `protoc --include_imports --descriptor_set_out=FILE`, name a message
    that is in the file, and give the column the fields and types of the message.
    """

    condition = "TXNLOG_PROTOBUF.SCHEMA"


class UnencodableMessage(TxnLogError):
    """A column has a value that its Protobuf field cannot hold.

    Remedy: before the write, cast or filter the column that the text names.
    """

    condition = "TXNLOG_PROTOBUF.UNENCODABLE"


class RegistryError(TxnLogError):
    """The schema registry refused a request, or sent an invalid answer.

    Remedy: do what the registry's answer says, which is in the text. Check `schema.registry.url`.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY"


class RegistryUnreachable(RegistryError):
    """No address in `schema.registry.url` answered as a schema registry, even after retries.

    Remedy: start the registry, or set an address that every executor reaches. The text has the
    answer of each address. If an address answers 404 without a registry's error code, a proxy has
    answered, or the path in the address is wrong.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY.UNREACHABLE"


class UnknownSchema(RegistryError):
    """The registry does not have the schema id, the subject, or the schema under the subject.

    Remedy: for a write, register the schema, or set auto.register.schemas=true. For a read, check
    whether the values come from another registry.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY.UNKNOWN_SCHEMA"
