"""Errors of formats and schema registries. A wrong option is an `OptionError`."""

from __future__ import annotations

from txnlog_spark.errors import TxnLogError


class AvroSchemaError(TxnLogError):
    """A schema is not one, has no Spark type, or does not fit the other schema or the column.

    Remedy: mend the schema or the column that the text names, or cast the column to the type of
    the schema.
    """

    condition = "TXNLOG_AVRO.SCHEMA"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class MalformedAvro(TxnLogError):
    """A value is not a datum of its schema. `row` counts from 0 in the Arrow batch.

    Remedy: read with the schema it was written with, or set mode=PERMISSIVE and keep the rows whose
    value became null apart.
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
    """A column holds a value that its Avro schema has no place for.

    Remedy: cast or filter the column that the text names before to_avro, or widen the schema.
    """

    condition = "TXNLOG_AVRO.UNENCODABLE"


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


class RegistryError(TxnLogError):
    """The schema registry refused, or gave what cannot be an answer.

    Remedy: do what the registry's answer says, which is in the text; look at `schema.registry.url`.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY"


class RegistryUnreachable(RegistryError):
    """No answer of a registry from any address in `schema.registry.url`, also when asked again.

    Remedy: start the registry, or give an address that every executor reaches. The text has what
    each address gave instead: a 404 without a registry's error code is of a proxy, or of a wrong
    path in the address.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY.UNREACHABLE"


class UnknownSchema(RegistryError):
    """The registry does not have the schema id, the subject, or the schema under the subject.

    Remedy: register the schema, or set auto.register.schemas=true; for a reader, look whether the
    values come from another registry.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY.UNKNOWN_SCHEMA"
