"""Bodies that are JSON objects, as columns.

A body is first decoded strictly, by a decoder that was made for the schema and builds nothing else.
A body with other types than the schema's is decoded a second time, and its values are converted
where that loses nothing: anything to a text (as JSON), numbers to decimals and to times.

Invariant: what the strict way gives, the lenient way gives too. Fields that the schema does not
name are not looked at, and missing ones are null.

    timestamp   ISO 8601 (UTC if it names no zone), or seconds since the epoch
    date        ISO 8601
    binary      base64
    map         an object
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from onelog.errors import ConfigError
from onelog.spark.bodies.typed_values import NOT_FITTING, Column, Convert, Decoded, Values, shown

_INT64_MAX = (1 << 63) - 1
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_US_MIN = -62_135_596_800_000_000
_US_MAX = 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since the epoch."""
_DIGITS = Context(prec=80)
_WIDE = sql.DecimalType(38, 0)
"""Of whole numbers that need more than 64 bits."""
_TEXT = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How values of one type are decoded."""

    strict: Any
    """The type for msgspec."""
    loose: Convert
    """From any JSON value, or ValueError."""
    finish: Convert | None = None
    """From what msgspec gives to what Arrow takes, if these differ."""
    at_once: Callable[[Values], pa.Array | None] | None = None
    """The same for a whole column, much faster; None if there is something unusual in it."""


class JsonBodies:
    """Decodes the fields of one schema."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._names = [field.name for field in fields]
        self._kinds = [_kind(field.type, field.name) for field in fields]
        members = [(f"f{n}", kind.strict | None, None) for n, kind in enumerate(self._kinds)]
        names = {f"f{number}": name for number, name in enumerate(self._names)}
        row = msgspec.defstruct("Row", members, rename=names, gc=False)
        self._nothing = row()
        self._strict = msgspec.json.Decoder(row).decode
        has_decimals = any("decimal" in str(field.type) for field in fields)
        self._loose = msgspec.json.Decoder(float_hook=Decimal if has_decimals else None).decode

    def decode(self, bodies: Sequence[bytes]) -> Decoded:
        """The values of all fields."""
        errors: dict[int, str] = {}
        late: dict[int, list[object]] = {}
        try:
            rows = list(map(self._strict, bodies))
        except _MALFORMED:
            rows = [self._one(row, body, errors, late) for row, body in enumerate(bodies)]
        found = Decoded([self._column(rows, number, errors) for number in range(len(self._kinds))])
        for row, reason in errors.items():
            found.fail(row, reason)
        for row, converted in late.items():
            if row not in errors:
                found.put(row, converted)
        return found

    def _column(self, rows: list[msgspec.Struct], number: int, errors: dict[int, str]) -> Column:
        """The values of one field of the bodies that were decoded strictly."""
        kind, name = self._kinds[number], f"f{number}"
        values: Values = [getattr(row, name) for row in rows]
        if kind.at_once is not None and (array := kind.at_once(values)) is not None:
            return array
        if kind.finish is not None:
            for row, value in enumerate(values):
                try:
                    values[row] = _converted(self._names[number], kind.finish, value)
                except ValueError as error:
                    errors.setdefault(row, str(error))
                    values[row] = None
        return values

    def _one(
        self, row: int, body: bytes, errors: dict[int, str], late: dict[int, list[object]]
    ) -> msgspec.Struct:
        try:
            return self._strict(body)
        except _MALFORMED:
            pass
        try:
            found = self._loose(body)
            if not isinstance(found, dict):
                raise ValueError(f"{shown(found)} is no JSON object")
            late[row] = [
                _converted(name, kind.loose, found.get(name))
                for name, kind in zip(self._names, self._kinds, strict=True)
            ]
        except (*_MALFORMED, ValueError) as error:
            errors[row] = str(error)
        return self._nothing


def _converted(name: str, convert: Convert, value: object) -> object:
    try:
        return None if value is None else convert(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# -- types ---------------------------------------------------------------------------------------


def _kind(kind: pa.DataType, name: str) -> _Kind:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return _Kind(str, _text)
    if types.is_signed_integer(kind):
        limit = 1 << kind.bit_width - 1
        return _Kind(
            Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)],
            lambda value: _whole_number(value, limit),
        )
    if types.is_floating(kind):
        return _Kind(float, _number)
    if types.is_boolean(kind):
        return _Kind(bool, _boolean)
    if types.is_decimal(kind):
        return _Kind(Decimal, lambda value: _decimal(value, kind), lambda v: _decimal(v, kind))
    if types.is_date(kind):
        return _Kind(date, _date)
    if types.is_timestamp(kind):
        if kind.tz is None:
            return _Kind(str, _local_time, _local_time)
        return _Kind(str | int | float, _time, _time, lambda values: _times(values, kind))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _Kind(bytes, _binary)
    if types.is_list(kind):
        return _list(_kind(kind.value_type, f"{name}[]"))
    if types.is_map(kind) and types.is_string(kind.key_type):
        return _map(_kind(kind.item_type, f"{name}{{}}"))
    if types.is_struct(kind):
        return _struct(kind, name)
    raise ConfigError(f"decode: the field {name!r} is {kind}, which JSON has no form for")


def _list(element: _Kind) -> _Kind:
    def each_of(convert: Convert, value: object) -> object:
        if not isinstance(value, list):
            raise ValueError(f"{shown(value)} is no array")
        return [None if each is None else convert(each) for each in value]

    finish = element.finish
    return _Kind(
        list[element.strict | None],  # type: ignore[name-defined]
        lambda value: each_of(element.loose, value),
        None if finish is None else lambda value: each_of(finish, value),
    )


def _map(item: _Kind) -> _Kind:
    def pairs(convert: Convert | None, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} is no object")
        return [
            (key, each if each is None or convert is None else convert(each))
            for key, each in value.items()
        ]

    return _Kind(
        dict[str, item.strict | None],  # type: ignore[name-defined]
        lambda value: pairs(item.loose, value),
        lambda value: pairs(item.finish, value),
    )


def _struct(kind: pa.StructType, name: str) -> _Kind:
    inner = {each.name: _kind(each.type, f"{name}.{each.name}") for each in kind}
    unfinished = {key: each.finish for key, each in inner.items() if each.finish is not None}

    def loosely(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} is no object")
        return {key: _converted(key, each.loose, value.get(key)) for key, each in inner.items()}

    def finished(value: object) -> object:
        assert isinstance(value, dict)
        for key, finish in unfinished.items():
            if value.get(key) is not None:
                value[key] = finish(value[key])
        return value

    strict = TypedDict(  # type: ignore[misc]
        "strict", {key: each.strict | None for key, each in inner.items()}, total=False
    )
    return _Kind(strict, loosely, finished if unfinished else None)


# -- values --------------------------------------------------------------------------------------


def _text(value: object) -> object:
    return value if isinstance(value, str) else _TEXT.encode(value).decode()


def _whole_number(value: object, limit: int) -> object:
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is no whole number")
    if not -limit <= value < limit:
        raise ValueError(f"{value} is outside {-limit}..{limit - 1}")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"{shown(value)} is no number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{shown(value)} is too large") from None


def _boolean(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false")
    return value


def _decimal(value: object, kind: pa.DataType) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"{shown(value)} is no number")
    try:
        unit = Decimal(1).scaleb(-kind.scale)
        exact = Decimal(str(value)).quantize(unit, ROUND_HALF_UP, _DIGITS)
    except InvalidOperation:
        raise ValueError(f"{str(value)[:60]!r} is no {kind}") from None
    if exact.adjusted() >= kind.precision - kind.scale and exact:
        raise ValueError(f"{value} has more digits than {kind}")
    return exact


def _date(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no date")
    return date.fromisoformat(value)


def _time(value: object) -> object:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"{shown(value)} is no time")
    try:
        return datetime.fromtimestamp(float(value), UTC)
    except (OverflowError, OSError):
        raise ValueError(f"{value} seconds since the epoch is no time") from None


def _times(values: Values, kind: pa.DataType) -> pa.Array | None:
    """Texts as times; None if they are not all in the usual forms, and all with a zone or none."""
    if not all(value is None or type(value) is str for value in values):
        return None
    for zone in (kind, pa.timestamp("us")):
        try:
            texts = pa.array(values, pa.string())
            found = texts.cast(zone).view(kind)
        except NOT_FITTING:
            continue
        # Arrow knows years that Python does not.
        limits = pc.min_max(found.cast(pa.int64())).as_py()
        is_usual = limits["min"] is None or _US_MIN <= limits["min"] <= limits["max"] <= _US_MAX
        return found if is_usual else None
    return None


def _local_time(value: object) -> object:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise ValueError(f"{shown(value)} is no time without a zone")
    return value


def _binary(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{shown(value)} is no base64: {error}") from None


# -- inference -----------------------------------------------------------------------------------


def infer_schema(sample: Iterable[bytes]) -> sql.StructType:
    """A schema that fits the objects of a sample; bodies that are no JSON objects do not count."""
    found: sql.DataType = sql.NullType()
    for body in sample:
        try:
            value = msgspec.json.decode(body)
        except _MALFORMED:
            continue
        if isinstance(value, dict):
            found = _merged(found, _inferred(value))
    if not isinstance(found, sql.StructType) or not found.fields:
        raise ConfigError(
            "decode=json: no schema can be inferred, because no message of the sample is a JSON "
            "object with fields: give one with the option schema or schemaFile"
        )
    named = _without_nulls(found)
    assert isinstance(named, sql.StructType)
    return named


def _inferred(value: object) -> sql.DataType:
    if value is None:
        return sql.NullType()
    if isinstance(value, bool):
        return sql.BooleanType()
    if isinstance(value, int):
        if -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return sql.LongType()
        # A double would be another number.
        return _WIDE if abs(value) < 10**_WIDE.precision else sql.StringType()
    if isinstance(value, float):
        return sql.DoubleType()
    if isinstance(value, dict):
        return sql.StructType(
            [sql.StructField(key, _inferred(each)) for key, each in value.items()]
        )
    if isinstance(value, list):
        element: sql.DataType = sql.NullType()
        for each in value:
            element = _merged(element, _inferred(each))
        return sql.ArrayType(element)
    return sql.StringType()


def _merged(one: sql.DataType, other: sql.DataType) -> sql.DataType:
    """A type that both fit; in the end, text."""
    if one == other or isinstance(other, sql.NullType):
        return one
    if isinstance(one, sql.NullType):
        return other
    if {type(one), type(other)} == {sql.LongType, sql.DoubleType}:
        return sql.DoubleType()
    if {type(one), type(other)} == {sql.LongType, sql.DecimalType}:
        return _WIDE
    if isinstance(one, sql.ArrayType) and isinstance(other, sql.ArrayType):
        return sql.ArrayType(_merged(one.elementType, other.elementType))
    if isinstance(one, sql.StructType) and isinstance(other, sql.StructType):
        kinds = {field.name: field.dataType for field in one}
        for field in other:
            kinds[field.name] = _merged(kinds.get(field.name, sql.NullType()), field.dataType)
        return sql.StructType([sql.StructField(name, kind) for name, kind in kinds.items()])
    return sql.StringType()


def _without_nulls(kind: sql.DataType) -> sql.DataType:
    """The same, with text for what was never anything but null, and for objects without fields."""
    if isinstance(kind, sql.NullType):
        return sql.StringType()
    if isinstance(kind, sql.ArrayType):
        return sql.ArrayType(_without_nulls(kind.elementType))
    if isinstance(kind, sql.StructType):
        fields = [sql.StructField(each.name, _without_nulls(each.dataType)) for each in kind]
        return sql.StructType(fields) if fields else sql.StringType()
    return kind
