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
