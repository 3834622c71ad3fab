"""Bodies as typed columns: JSON, Avro, Protobuf or text, by a schema.

A `BodyFormat` is found out on the driver, from options and if need be from a sample of messages. It
is plain data, and goes to the workers, where its reader turns the bodies of a batch into columns.

Invariant: every body gives one row. A body that is not what the schema says gives nulls and a
reason in the column `_error`; with mode failfast it raises `UndecodableError`, and there is no such
column.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from onelog.errors import ConfigError
from onelog.spark.bodies.ddl import parse_ddl
from onelog.spark.bodies.typed_values import Decoded, columns
from onelog.spark.columns.messages import BodyError
from onelog.spark.columns.schema import ALL
from onelog.spark.options import Decode, Form, Framing, Mode

ERROR = "_error"
VALUE = "value"
"""The column of bodies that are text."""
_SCHEMA_FILE_BYTES_MAX = 16 << 20


class _Bodies(Protocol):
    def decode(self, bodies: Sequence[bytes]) -> Decoded: ...


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """What bodies are, and the columns that they become."""

    form: Form
    fields: StructType
    mode: Mode = "permissive"
    framing: Framing = "none"
    definition: bytes = b""
    """The Avro schema, or the Protobuf descriptor set."""
    message_type: str | None = None
    containers: bool = False
    """Avro: bodies are files that bring their schema along."""

    @property
    def schema(self) -> StructType:
        """The typed columns, with the one for errors."""
        error = [StructField(ERROR, StringType())] if self.mode == "permissive" else []
        return StructType([*self.fields.fields, *error])

    def reader(self, arrow_schema: pa.Schema) -> "BodyReader":
        """What decodes those of the columns that are in a table's schema."""
        return BodyReader(self, arrow_schema)


def body_format(decode: Decode, sample: Iterable[bytes] = ()) -> BodyFormat:
    """The format that options describe; where they leave the schema open, a sample tells it."""
    given = decode.schema.encode() if decode.schema is not None else None
    if decode.schema_file is not None:
        given = _read(decode.schema_file)
    definition, containers = b"", False
    if decode.form == "string":
        fields = StructType([StructField(VALUE, StringType())])
    elif decode.form == "json":
        fields = _json_fields(given, sample)
    elif decode.form == "avro":
        sample = _unframed(decode.framing, sample)
        fields, definition, containers = _avro_fields(given, sample)
    else:
        if decode.schema_file is None or given is None:
            raise ConfigError(
                "decode=protobuf needs the option schemaFile: the descriptor set that protoc "
                "--include_imports --descriptor_set_out=FILE writes"
            )
        from onelog.spark.bodies import protobuf as protobuf_bodies

        fields, definition = protobuf_bodies.spark_fields(given, decode.message_type), given
    _check_fields(fields)
    nullable = _nullable(fields)
    assert isinstance(nullable, StructType)
    return BodyFormat(
        decode.form,
        nullable,
        decode.mode,
        decode.framing,
        definition,
        decode.message_type,
        containers,
    )


def json_format(fields: StructType, mode: Mode = "permissive") -> BodyFormat:
    """JSON with fields that are known already, as in a schema that was inferred before."""
    known = StructType([field for field in fields if field.name != ERROR])
    _check_fields(known)
    return BodyFormat("json", known, mode)


def message_columns(wanted: Sequence[str] | None, typed: StructType) -> tuple[str, ...]:
    """The columns of a message that a table has beside the typed ones.

    Those that were asked for; else all but the body and those whose names the typed columns have.
    """
    names = set(typed.fieldNames())
    if wanted is None:
        return tuple(name for name in ALL if name != "body" and name not in names)
    if both := names.intersection(wanted):
        raise ConfigError(
            f"columns: {', '.join(sorted(both))} is in the bodies, too; leave it out here, or out "
            "of the schema of the bodies"
        )
    return tuple(wanted)


# -- schemas -------------------------------------------------------------------------------------


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_SCHEMA_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"schemaFile: {path} cannot be read: {error.strerror}") from None
    if not content.strip() or len(content) > _SCHEMA_FILE_BYTES_MAX:
        raise ConfigError(f"schemaFile: {path} is empty or too large to be a schema")
    return content


def _text(given: bytes) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise ConfigError("schemaFile: it is no text, as a schema for this format is") from None


def _json_fields(given: bytes | None, sample: Iterable[bytes]) -> StructType:
    from onelog.spark.bodies import json as json_bodies

    if given is None:
        return json_bodies.infer_schema(sample)
    text = _text(given).strip()
    if not text.startswith("{"):
        return parse_ddl(text)
    try:
        return StructType.fromJson(json.loads(text))
    except Exception as error:  # PySpark raises all kinds of errors.
        raise ConfigError(
            f"schema: this is neither DDL nor a Spark schema as JSON: {error}"
        ) from None


def _avro_fields(given: bytes | None, sample: Iterable[bytes]) -> tuple[StructType, bytes, bool]:
    from onelog.spark.bodies import avro as avro_bodies

    containers = given is None
    if given is None:
        definition = avro_bodies.schema_in_sample(sample)
    else:
        definition = avro_bodies.parse_schema(_text(given))
    return avro_bodies.spark_fields(definition), definition.encode(), containers


def _check_fields(fields: StructType) -> None:
    names = [name.lower() for name in fields.fieldNames()]
    if not names:
        raise ConfigError("schema: it has no fields")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"schema: it has the field {name!r} twice (case does not count)")
    if ERROR in names:
        raise ConfigError(f"schema: {ERROR!r} is the column for errors; no field can be named so")


def _nullable(kind: DataType) -> DataType:
    """The same type with nulls everywhere: what a body lacks must have a place."""
    if isinstance(kind, StructType):
        return StructType(
            [StructField(each.name, _nullable(each.dataType), True, each.metadata) for each in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


# -- reading -------------------------------------------------------------------------------------


class BodyReader:
    """Turns bodies into columns, in a worker."""

    def __init__(self, body_format: BodyFormat, arrow_schema: pa.Schema) -> None:
        self._format = body_format
        known = body_format.fields.fieldNames()
        self._fields = [field for field in arrow_schema if field.name in known]
        self._bodies = None if body_format.form == "string" else self._decoder()

    def _decoder(self) -> _Bodies:
        given, fields = self._format, self._fields
        if given.form == "json":
            from onelog.spark.bodies.json import JsonBodies

            return JsonBodies(fields)
        if given.form == "avro":
            from onelog.spark.bodies.avro import AvroBodies

            return AvroBodies(given.definition.decode(), fields, containers=given.containers)
        from onelog.spark.bodies.protobuf import ProtobufBodies

        return ProtobufBodies(given.definition, given.message_type, fields)

    def columns(self, bodies: pa.Array) -> dict[str, pa.Array]:
        """The typed columns by name, one row for each body; one that is null has nulls."""
        if bodies.null_count:
            return self._columns_with_nulls(bodies)
        if self._bodies is None:
            arrays, errors = _texts(bodies, self._fields)
        else:
            raw, framed = self._without_frames(bodies.to_pylist())
            decoded = self._bodies.decode(raw)
            for row, reason in framed.items():
                decoded.fail(row, reason)
            arrays, errors = columns(self._fields, decoded)
        if errors and self._format.mode == "failfast":
            row = min(errors)
            raise BodyError(row, f"it is not {self._format.form}: {errors[row]}")
        found = {field.name: array for field, array in zip(self._fields, arrays, strict=True)}
        if self._format.mode == "permissive":
            reasons = [errors.get(row) for row in range(len(bodies))] if errors else None
            found[ERROR] = (
                pa.nulls(len(bodies), pa.string()) if reasons is None else pa.array(reasons)
            )
        return found

    def _columns_with_nulls(self, bodies: pa.Array) -> dict[str, pa.Array]:
        there = np.flatnonzero(bodies.is_valid().to_numpy(zero_copy_only=False))
        try:
            found = self.columns(bodies.take(pa.array(there)))
        except BodyError as error:
            raise BodyError(int(there[error.row]), str(error)) from None
        rows_at = np.full(len(bodies), -1)
        rows_at[there] = np.arange(len(there))
        taken = pa.array(rows_at, mask=rows_at < 0)
        return {name: array.take(taken) for name, array in found.items()}

    def _without_frames(self, bodies: list[bytes]) -> tuple[list[bytes], dict[int, str]]:
        if self._format.framing == "none":
            return bodies, {}
        errors: dict[int, str] = {}
        raw = []
        for row, body in enumerate(bodies):
            try:
                raw.append(_payload(body, has_indexes=self._format.form == "protobuf"))
            except ValueError as error:
                errors[row] = str(error)
                raw.append(b"")
        return raw, errors


def _texts(bodies: pa.Array, fields: list[pa.Field]) -> tuple[list[pa.Array], dict[int, str]]:
    if not fields:
        return [], {}
    try:
        return [bodies.cast(pa.string())], {}
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        errors: dict[int, str] = {}
        for row, body in enumerate(bodies.to_pylist()):
            try:
                texts.append(body.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                errors[row] = str(error)
        return [pa.array(texts, pa.string())], errors


# -- frames --------------------------------------------------------------------------------------


def _unframed(framing: Framing, sample: Iterable[bytes]) -> Iterable[bytes]:
    for body in sample:
        try:
            yield body if framing == "none" else _payload(body, has_indexes=False)
        except ValueError:
            continue


def _payload(body: bytes, *, has_indexes: bool) -> bytes:
    """What Confluent's serializers put behind the number of a schema.

    Before a Protobuf message they put, as zigzag varints, how many steps lead to its type and the
    steps; a single zero stands for the first type.
    """
    if len(body) < 5 or body[0] != 0:
        raise ValueError("it does not begin with a zero and the number of a schema")
    at = 5
    if has_indexes:
        steps, at = _varint(body, at)
        for _ in range(steps >> 1):
            _, at = _varint(body, at)
    return body[at:]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if not byte & 0x80:
            return value, at
    raise ValueError("the steps to the type of the message are cut off")
