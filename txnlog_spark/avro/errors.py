"""What can go wrong with Avro, beside a wrong option (`OptionError`)."""

from __future__ import annotations

from txnlog_spark.errors import TxnLogError


class AvroSchemaError(TxnLogError):
    """A schema is not one, has no Spark type, or does not fit the other schema or the column.

    Remedy: mend the schema or the column that the text names, or cast the column to the type of
    the schema.
    """

    condition = "TXNLOG_AVRO.SCHEMA"


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
