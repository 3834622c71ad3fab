"""Bodies that are Protobuf messages, as columns.

What the messages look like is said by a descriptor set, the file that `protoc
--include_imports --descriptor_set_out=FILE` writes, and by the name of the message.

    double, float, bool, string, bytes    the same
    int32, sint32, sfixed32               int
    uint32, fixed32, 64-bit numbers       bigint
    uint64, fixed64                       decimal(20, 0)
    enum                                  string: the name, or the number if it has none
    message, repeated, map                struct, array, map
    google.protobuf.Timestamp             timestamp
    google.protobuf.Int32Value and such   what they wrap, or null

A field that can tell whether it was set is null if it was not; others have their default.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql import types as sql

from onelog.errors import ConfigError
from onelog.spark.bodies.typed_values import Convert, Decoded, Values

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRAPPER = re.compile(r"google\.protobuf\.(?:Double|Float|U?Int(?:32|64)|Bool|String|Bytes)Value")
_TIMESTAMP = "google.protobuf.Timestamp"
_SCALARS: dict[int, type[sql.DataType]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: sql.DoubleType,
    FieldDescriptor.CPPTYPE_FLOAT: sql.FloatType,
    FieldDescriptor.CPPTYPE_BOOL: sql.BooleanType,
    FieldDescriptor.CPPTYPE_INT32: sql.IntegerType,
    FieldDescriptor.CPPTYPE_UINT32: sql.LongType,
    FieldDescriptor.CPPTYPE_INT64: sql.LongType,
    FieldDescriptor.CPPTYPE_ENUM: sql.StringType,
}


def _message_type(descriptors: bytes, name: str | None) -> Descriptor:
    """A message of a descriptor set, by its full name or the end of it."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        known = {
            message.full_name: message
            for file in files.file
            for top in pool.FindFileByName(file.name).message_types_by_name.values()
            for message in _with_nested(top)
        }
    except (DecodeError, TypeError, KeyError) as error:
        raise ConfigError(
            f"schemaFile: this is no Protobuf descriptor set with all its imports ({error}); make "
            "one with protoc --include_imports --descriptor_set_out=FILE"
        ) from None
    if name is None and len(known) == 1:
        return known.popitem()[1]
    found = [each for key, each in known.items() if name and f".{key}".endswith(f".{name}")]
    if len(found) != 1:
        what = "is ambiguous" if found else "is not in the descriptor set"
        raise ConfigError(
            f"messageType: {name!r} {what if name else 'must be given'}; it has "
            f"{', '.join(sorted(known)) or 'no messages'}"
        )
    return found[0]


def _with_nested(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from _with_nested(nested)


def spark_fields(descriptors: bytes, name: str | None) -> sql.StructType:
    """The columns of a message."""
    return _struct(_message_type(descriptors, name), ())


def _struct(message: Descriptor, inside: tuple[str, ...]) -> sql.StructType:
    if message.full_name in inside:
        raise ConfigError(
            f"decode=protobuf: {message.full_name} is inside of itself, and no column can be: "
            "decode such bodies in the query"
        )
    deeper = (*inside, message.full_name)
    return sql.StructType(
        [sql.StructField(each.name, _type(each, deeper)) for each in message.fields]
    )


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> sql.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return sql.MapType(_single(entry["key"], inside), _single(entry["value"], inside))
    single = _single(field, inside)
    return sql.ArrayType(single) if _is_repeated(field) else single


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> sql.DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return sql.TimestampType()
        if _WRAPPER.fullmatch(name):
            return _single(field.message_type.fields_by_name["value"], inside)
        return _struct(field.message_type, inside)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return sql.DecimalType(20, 0)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return sql.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else sql.StringType()
    return _SCALARS[field.cpp_type]()


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return _is_repeated(field) and kind is not None and bool(kind.GetOptions().map_entry)


def _is_repeated(field: FieldDescriptor) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)  # Before protobuf 6.31.


class ProtobufBodies:
    """Decodes fields of one message."""

    def __init__(self, descriptors: bytes, name: str | None, fields: Sequence[pa.Field]) -> None:
        message = _message_type(descriptors, name)
        kind = message_factory.GetMessageClass(message)
        self._parse = kind.FromString
        self._nothing = kind()
        self._gets = [_get(message.fields_by_name[field.name]) for field in fields]

    def decode(self, bodies: Sequence[bytes]) -> Decoded:
        """The values of all fields."""
        messages: list[Message] = []
        errors: dict[int, str] = {}
        for row, body in enumerate(bodies):
            try:
                message = self._parse(body)
                if not message.IsInitialized():
                    missing = ", ".join(message.FindInitializationErrors())
                    raise ValueError(f"required fields are missing: {missing}")
                messages.append(message)
            except (DecodeError, ValueError) as error:
                errors[row] = f"no Protobuf message of this type: {error}"
                messages.append(self._nothing)
        found = Decoded([_values(get, messages, errors) for get in self._gets])
        for row, reason in errors.items():
            found.fail(row, reason)
        return found


def _values(get: Convert, messages: list[Message], errors: dict[int, str]) -> Values:
    values: Values = []
    for row, message in enumerate(messages):
        try:
            values.append(get(message))
        except OverflowError as error:
            errors.setdefault(row, f"a time that no timestamp can be: {error}")
            values.append(None)
    return values


def _get(field: FieldDescriptor) -> Convert:
    """What takes a field out of a message."""
    name = field.name
    if _is_map(field):
        entry = field.message_type.fields_by_name
        of_key, of_value = _convert(entry["key"]), _convert(entry["value"])
        return lambda message: [
            (of_key(key), of_value(value)) for key, value in getattr(message, name).items()
        ]
    convert = _convert(field)
    if _is_repeated(field):
        return lambda message: [convert(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message: (
            convert(getattr(message, name)) if _has_field(message, name) else None
        )
    if convert is _same:
        return attrgetter(name)
    return lambda message: convert(getattr(message, name))


def _has_field(message: object, name: str) -> bool:
    assert isinstance(message, Message)
    return bool(message.HasField(name))


def _convert(field: FieldDescriptor) -> Convert:
    kind = field.message_type
    if kind is not None:
        if kind.full_name == _TIMESTAMP:
            return _time
        if _WRAPPER.fullmatch(kind.full_name):
            inner = _convert(kind.fields_by_name["value"])
            return lambda message: inner(message.value)  # type: ignore[attr-defined]
        gets = {each.name: _get(each) for each in kind.fields}
        return lambda message: {name: get(message) for name, get in gets.items()}
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number) or str(number)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return lambda number: Decimal(str(number))
    return _same


def _same(value: object) -> object:
    return value


def _time(value: Any) -> object:
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
