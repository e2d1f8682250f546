"""The formats of a write, from its options and the types of its columns.

The driver makes them when it plans a batch: there it looks up schemas, or registers them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StringType

from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.formats.errors import RegistryError
from txnlog_spark.formats.read_formats import (
    SIDES,
    WITH_SCHEMA,
    json_type,
    read_descriptors,
    refuse_schema,
    registry_of,
    require,
)
from txnlog_spark.options.registry import URL, subject_of

if TYPE_CHECKING:
    from txnlog_spark.formats.registry.client import Registry
    from txnlog_spark.formats.writers import Writer


@dataclass(frozen=True, slots=True)
class WriteFormat:
    """Options of the keys or the values (`side`) of a write; the schema is not known yet.

    `columns` are the columns that are its fields, ("*",) for all without another meaning.
    """

    side: str
    name: str
    columns: tuple[str, ...]
    schema: str | None
    message: str | None
    subject: str | None
    strategy: str
    registry: tuple[tuple[str, str], ...] = field(repr=False)  # may have passwords
    auto_register: bool
    use_latest: bool
    keep_latest: bool
    """True if a process asks for the latest schema once: for the micro-batches of a query."""
    time_zone: str | None

    def writer(self, type_: DataType, topic: str | None) -> Writer:
        """Return the writer for a column of this type. Raises OptionError, RegistryError.

        If the column does not fit a schema that was kept, the registry is asked for the latest: a
        query that is started again with other columns may be meant for another schema.
        """
        make = {"string": _text, "json": _json, "avro": _avro, "protobuf": _protobuf}[self.name]
        try:
            return make(self, type_, topic)
        except RegistryError:
            raise
        except TxnLogError:
            if not (self.use_latest and self.keep_latest):
                raise
        return make(replace(self, keep_latest=False), type_, topic)

    def known(self, topic: str | None, kind: str, record: str = "") -> tuple[int, str | None]:
        """Return id and schema of the subject's latest version; without it 0 and the option's.

        `record` names the record of the schema.
        """
        if self.client is None or not self.use_latest:
            return 0, self.schema
        return self.client.latest(_subject(self, topic, record), kind, keep=self.keep_latest)

    def header(
        self, known_id: int, topic: str | None, schema: str, kind: str, record: str = ""
    ) -> bytes:
        """Return the bytes before each value: the id of this schema, none without a registry."""
        if self.client is None:
            return b""
        if not self.use_latest:
            subject = _subject(self, topic, record)
            known_id = self.client.id_of(subject, schema, kind, register=self.auto_register)
        from txnlog_spark.formats.schema_ids import header_of

        return header_of(known_id)

    def option(self, name: str) -> str:
        """Return the full name of an option of this side."""
        return f"{self.side}.{name}"

    @property
    def client(self) -> Registry | None:
        """The registry's client, None without a registry."""
        from txnlog_spark.formats.registry.client import registry_for

        return registry_for(dict(self.registry)) if self.registry else None


def write_formats(values: Mapping[str, Any]) -> dict[str, WriteFormat]:
    """Return the formats of the options by side, without a side that is binary.

    Raises OptionError.
    """
    registry = tuple(registry_of(values).items())
    made = {side: _write_format(side, values, registry) for side in SIDES}
    return {side: each for side, each in made.items() if each is not None}


def _write_format(
    side: str, values: Mapping[str, Any], registry: tuple[tuple[str, str], ...]
) -> WriteFormat | None:
    name = values[f"{side}.format"]
    made = WriteFormat(
        side=side,
        name=name,
        columns=values[f"{side}.columns"] or (),
        schema=values[f"{side}.schema"],
        message=values[f"{side}.message.name"],
        subject=values[f"{side}.subject"],
        strategy=values[f"{side}.subject.name.strategy"],
        registry=registry if name in WITH_SCHEMA else (),
        auto_register=values["auto.register.schemas"],
        use_latest=values["use.latest.version"],
        keep_latest=values["checkpointLocation"] is not None,
        time_zone=values["timeZone"],
    )
    refuse_schema(side, values, "columns")
    if made.auto_register and made.use_latest:
        raise OptionError("use.latest.version", "true", "not with auto.register.schemas=true")
    if made.use_latest and made.schema is not None:
        raise OptionError(f"{side}.schema", None, "remove it: use.latest.version=true asks for it")
    return None if name == "binary" else made


def _text(given: WriteFormat, type_: DataType, topic: str | None) -> Writer:  # noqa: ARG001
    if not isinstance(type_, StringType):
        raise OptionError(
            f"column {given.side}", type_.simpleString(), "a string: cast it before the write"
        )
    from txnlog_spark.formats.writers import Writer, text_encoder

    return Writer(text_encoder)


def _json(given: WriteFormat, type_: DataType, topic: str | None) -> Writer:
    from txnlog_spark.formats.json.encode import fitted, json_encoder
    from txnlog_spark.formats.types import all_nullable
    from txnlog_spark.formats.writers import Writer

    # A type or a zone that is not written is refused here, before a task sees it.
    where = "" if given.columns else given.side
    json_encoder(type_, given.time_zone, where)
    zone = given.time_zone
    schema_id, schema = given.known(topic, "JSON")
    if schema is None:
        if given.client is None:
            return Writer(json_encoder, (all_nullable(type_), zone, where))
        raise OptionError(
            given.option("schema"), None, f"set it to a JSON Schema: {URL} needs one to write with"
        )
    wanted = json_type(given.option("schema"), schema, of_write=True)
    type_ = fitted(type_, wanted, where)
    header = given.header(schema_id, topic, schema, "JSON")
    return Writer(json_encoder, (type_, zone, where), header)


def _avro(given: WriteFormat, type_: DataType, topic: str | None) -> Writer:
    require(given.option("format"), "avro")
    from txnlog_spark.formats.avro.encode import schema_encoder
    from txnlog_spark.formats.avro.schema import parse_avro
    from txnlog_spark.formats.avro.types import avro_json
    from txnlog_spark.formats.types import arrow_type
    from txnlog_spark.formats.writers import Writer

    schema_id, known = given.known(topic, "AVRO")
    schema, arrow = known or avro_json(type_, nullable=False), arrow_type(type_)
    schema_encoder(schema, arrow)  # what does not fit is said here
    header = given.header(schema_id, topic, schema, "AVRO", parse_avro(schema).name)
    return Writer(schema_encoder, (schema, arrow), header)


def _protobuf(given: WriteFormat, type_: DataType, topic: str | None) -> Writer:
    require(given.option("format"), "protobuf")
    from txnlog_spark.formats.protobuf import encode, frames, types
    from txnlog_spark.formats.writers import Writer

    schema_id, known = given.known(topic, "PROTOBUF", given.message or "")
    if known is None:
        raise OptionError(given.option("schema"), None, "set it to the path of a descriptor set")
    if given.use_latest and given.client is not None:
        descriptors = types.descriptor_set_of(base64.b64decode(known))
    else:
        descriptors = read_descriptors(given.option("schema"), known)
    message = given.message or types.first_message(descriptors)
    descriptor = types.message_descriptor(descriptors, message)
    encode.protobuf_encoder(descriptor, type_)  # what does not fit is said here
    name, schema = descriptor.full_name, base64.b64encode(types.file_of(descriptor)).decode()
    header = given.header(schema_id, topic, schema, "PROTOBUF", name)
    if header:
        header += frames.index_prefix(frames.message_indexes(descriptor))
    return Writer(encode.message_encoder, (descriptors, name, type_), header)


def _subject(given: WriteFormat, topic: str | None, record: str) -> str:
    if given.subject is not None:
        return given.subject
    return subject_of(given.strategy, topic or "", given.side, record)
