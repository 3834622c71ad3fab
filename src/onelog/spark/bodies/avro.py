"""Bodies that are Avro records, as columns.

A body is one record in Avro's binary form, written with a schema that the reader is given; or a
whole container file with one record, which brings its schema along.

    int, long, float, double, boolean, string, bytes   the same
    enum, uuid                     string
    fixed                          binary
    decimal                        decimal
    date, timestamp-*, local-*     date, timestamp, timestamp_ntz
    time-*                         bigint, in microseconds
    record, array, map             struct, array, map
    union with null                the other one; of int and long bigint, of numbers double,
                                   of anything else a string with JSON

Invariant: a body is decoded to its last byte, or it has an error.
"""

import io
import json
from collections.abc import Iterable, Sequence
from datetime import time
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from fastavro.schema import expand_schema
from pyspark.sql import types as sql

from onelog.errors import ConfigError
from onelog.spark.bodies.typed_values import Column, Convert, Decoded, Values

VALUE = "value"
"""The one column of a schema that is not a record."""
CONTAINER_MAGIC = b"Obj\x01"

_PRIMITIVE: dict[str, type[sql.DataType]] = {
    "boolean": sql.BooleanType,
    "int": sql.IntegerType,
    "long": sql.LongType,
    "float": sql.FloatType,
    "double": sql.DoubleType,
    "bytes": sql.BinaryType,
    "string": sql.StringType,
    "fixed": sql.BinaryType,
    "enum": sql.StringType,
}
_LOGICAL: dict[str, type[sql.DataType]] = {
    "date": sql.DateType,
    "time-millis": sql.LongType,
    "time-micros": sql.LongType,
    "timestamp-millis": sql.TimestampType,
    "timestamp-micros": sql.TimestampType,
    "local-timestamp-millis": sql.TimestampNTZType,
    "local-timestamp-micros": sql.TimestampNTZType,
    "uuid": sql.StringType,
}
Kind = tuple[sql.DataType, Convert | None]
"""A type, and what makes fastavro's values ones that Arrow takes, if that is needed."""


def parse_schema(text: str) -> str:
    """The schema as fastavro writes it; `ConfigError` if the text is none."""
    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"schema: this is no Avro schema: {error!r}") from None
    if isinstance(parsed, dict):
        parsed = {key: value for key, value in parsed.items() if not key.startswith("__")}
    return json.dumps(parsed)


def schema_in_sample(sample: Iterable[bytes]) -> str:
    """The schema that container files of a sample bring along."""
    for body in sample:
        if body.startswith(CONTAINER_MAGIC):
            try:
                return json.dumps(fastavro.reader(io.BytesIO(body)).writer_schema)
            except Exception:
                continue  # A damaged file; another one may be whole.
    raise ConfigError(
        "decode=avro: bodies do not say what they are, unless they are container files: give "
        "their schema with the option schema or schemaFile"
    )


def spark_fields(schema: str) -> sql.StructType:
    """The columns of records with a schema."""
    return sql.StructType(
        [sql.StructField(name, kind) for name, (kind, _) in _columns(schema).items()]
    )


def _columns(schema: str) -> dict[str, Kind]:
    # With what a name stands for in its place: names are left where records are inside themselves.
    expanded = expand_schema(json.loads(schema))
    if isinstance(expanded, dict) and expanded.get("type") in ("record", "error"):
        return _fields(expanded, "")
    return {VALUE: _column(expanded, VALUE)}


def _fields(record: Any, prefix: str) -> dict[str, Kind]:
    return {
        each["name"]: _column(each["type"], f"{prefix}{each['name']}") for each in record["fields"]
    }


def _column(schema: Any, name: str) -> Kind:
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return _PRIMITIVE[schema](), None
        if schema == "null":
            raise ConfigError(f"decode=avro: the field {name!r} is null, which no column can be")
        raise ConfigError(
            f"decode=avro: the field {name!r} holds records of the kind that it is in, and no "
            "column can: decode such bodies in the query"
        )
    if isinstance(schema, list):
        return _union(schema, name)
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "decimal":
        return sql.DecimalType(schema["precision"], schema.get("scale", 0)), None
    if logical in _LOGICAL:
        return _LOGICAL[logical](), _CONVERTED.get(logical)
    if kind == "array":
        element, convert = _column(schema["items"], f"{name}[]")
        return sql.ArrayType(element), _of_each(convert)
    if kind == "map":
        value, convert = _column(schema["values"], f"{name}{{}}")
        return sql.MapType(sql.StringType(), value), _pairs(convert)
    return _record(schema, name) if kind in ("record", "error") else _column(kind, name)


def _record(schema: Any, name: str) -> Kind:
    columns = _fields(schema, f"{name}.")
    converts = {key: convert for key, (_, convert) in columns.items() if convert is not None}

    def convert_all(value: Any) -> object:
        for key, convert in converts.items():
            if value[key] is not None:
                value[key] = convert(value[key])
        return value

    kind = sql.StructType([sql.StructField(key, each) for key, (each, _) in columns.items()])
    return kind, convert_all if converts else None


def _union(schemas: list[Any], name: str) -> Kind:
    others = [each for each in schemas if each != "null"]
    if len(others) == 1:
        return _column(others[0], name)
    if others and set(map(str, others)) <= {"int", "long"}:
        return sql.LongType(), None
    if others and set(map(str, others)) <= {"int", "long", "float", "double"}:
        return sql.DoubleType(), float  # type: ignore[return-value]
    return sql.StringType(), _as_json


def _of_each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: [None if each is None else convert(each) for each in value]  # type: ignore[attr-defined]


def _pairs(convert: Convert | None) -> Convert:
    def pairs(value: Any) -> object:
        return [
            (key, each if each is None or convert is None else convert(each))
            for key, each in value.items()
        ]

    return pairs


def _microseconds(value: object) -> object:
    assert isinstance(value, time)
    minutes = value.hour * 60 + value.minute
    return (minutes * 60 + value.second) * 1_000_000 + value.microsecond


def _as_json(value: object) -> object:
    return msgspec.json.encode(value, enc_hook=str).decode()


_CONVERTED: dict[str, Convert] = {
    "time-millis": _microseconds,
    "time-micros": _microseconds,
    "uuid": str,
}


class AvroBodies:
    """Decodes the fields of one schema; without a schema of its own, container files."""

    def __init__(self, schema: str, fields: Sequence[pa.Field], *, containers: bool) -> None:
        parsed = json.loads(schema)
        self._schema = fastavro.parse_schema(parsed)
        self._is_record = isinstance(parsed, dict) and parsed.get("type") in ("record", "error")
        self._containers = containers
        self._names = [field.name for field in fields]
        columns = _columns(schema)
        self._converts = [columns[name][1] for name in self._names]
        self._nothing = dict.fromkeys(self._names)

    def decode(self, bodies: Sequence[bytes]) -> Decoded:
        """The values of all fields."""
        records: list[Any] = []
        errors: dict[int, str] = {}
        read = self._read_container if self._containers else self._read
        for row, body in enumerate(bodies):
            try:
                records.append(read(body))
            # For bytes that are something else, the library raises all kinds of errors.
            except Exception as error:
                errors[row] = f"no Avro record of this schema: {str(error) or type(error).__name__}"
                records.append(self._nothing)
        return Decoded(
            [self._column(records, number) for number in range(len(self._names))], errors
        )

    def _column(self, records: list[Any], number: int) -> Column:
        name, convert = self._names[number], self._converts[number]
        values: Values = [record[name] for record in records]
        if convert is None:
            return values
        return [None if value is None else convert(value) for value in values]

    def _read(self, body: bytes) -> Any:
        stream = io.BytesIO(body)
        found = fastavro.schemaless_reader(stream, self._schema, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes are left over")
        return found if self._is_record else {VALUE: found}

    def _read_container(self, body: bytes) -> Any:
        found = list(fastavro.reader(io.BytesIO(body), self._schema))
        if len(found) != 1:
            raise ValueError(f"a container file with {len(found)} records")
        return found[0] if self._is_record else {VALUE: found[0]}
