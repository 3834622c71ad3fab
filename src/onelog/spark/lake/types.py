"""The types of a table's columns, and values that are to have them.

A column keeps the type that it had first: neither Delta tables as delta-rs writes them nor plain
Parquet files can change it, and whoever writes another one below the same name makes a table that
readers refuse, or read as something else. So values of another type are converted where that
changes nothing, and what cannot be is told, row by row (`fit`). Tables only grow: by columns, and
by fields of structs.

    from            to              if
    whole number    whole number    it is in the range
    whole number    float, decimal  it is exact there (doubles: up to 2^53)
    float           whole number    it has no fraction, and is below 2^53
    float           float           it is exact there
    decimal         whole number,   it is exact there
                    decimal
    number, boolean, date   string  always: what JSON writes
    struct, array, map              all that is in it fits; structs: by the names of fields

Names are the same whatever their case, as they are for Delta and Spark.

Invariant: a value that fits is, read back, the value that it was.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type

from onelog.record.columns import Ints, Mask
from onelog.spark.bodies.typed_values import shown

_EXACT_MAX = 1 << 53
"""Doubles from here on may have been other numbers before they were doubles."""


def named(kind: pa.DataType) -> str:
    return from_arrow_type(kind).simpleString()


def fit(rows: pa.RecordBatch, known: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The rows with the types that a table knows, and why some of them cannot be: those have nulls.

    Columns that it does not know stay as they are.
    """
    names = {field.name.lower(): field for field in known}
    reasons: dict[int, str] = {}
    columns: dict[str, pa.Array] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        field = names.get(name.lower())
        if field is None:
            columns[name] = column
            continue
        fitted, misfits = _fit(column, field.type)
        columns[field.name] = fitted
        for row in np.flatnonzero(misfits).tolist() if misfits is not None else ():
            reasons.setdefault(
                row,
                f"{name}: {shown(column[row].as_py())} is not as the table has it, which is "
                f"{named(field.type)}",
            )
    return pa.record_batch(columns), reasons


def conflict(known: pa.Schema, found: pa.Schema) -> str | None:
    """A column that both have, with other types; None if what is found goes into the table."""
    names = {field.name: field.type for field in known}
    for field in found:
        if field.name in names and not _contains(field.type, names[field.name]):
            other = named(names[field.name])
            return f"{field.name} as {named(field.type)}, where the table has {other}"
    return None


def merged(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """The columns of a table that took files without a conflict."""
    kind = _grown(pa.struct(list(known)), pa.struct(list(found)))
    return pa.schema(list(kind))


def _grown(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(known) and types.is_struct(found):
        kinds = {field.name: field.type for field in known}
        for field in found:
            kinds[field.name] = _grown(kinds.get(field.name, field.type), field.type)
        return pa.struct(list(kinds.items()))
    if types.is_list(known) and types.is_list(found):
        return pa.list_(_grown(known.value_type, found.value_type))
    if types.is_map(known) and types.is_map(found):
        return pa.map_(known.key_type, _grown(known.item_type, found.item_type))
    return known


def _contains(found: pa.DataType, known: pa.DataType) -> bool:
    """Whether values of a type can lie in a table's column: structs may have more or less."""
    types = pa.types
    if types.is_struct(found) and types.is_struct(known):
        kinds = {field.name: field.type for field in known}
        return all(
            _contains(field.type, kinds[field.name]) for field in found if field.name in kinds
        )
    if _is_list(found) and _is_list(known):
        return _contains(found.value_type, known.value_type)
    if types.is_map(found) and types.is_map(known):
        return _contains(found.key_type, known.key_type) and _contains(
            found.item_type, known.item_type
        )
    return bool(_plain(found) == _plain(known))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Texts and bytes have several types in Arrow, and one in tables."""
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


# -- arrays --------------------------------------------------------------------------------------


def _fit(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """An array of the type, and which rows do not fit."""
    types = pa.types
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind), None
    if types.is_struct(kind) and types.is_struct(array.type):
        return _fit_struct(array, kind)
    if _is_list(kind) and types.is_list(array.type):
        return _fit_list(array, kind)
    if types.is_map(kind) and types.is_map(array.type):
        return _fit_map(array, kind)
    if _plain(array.type) == _plain(kind):
        return array, None
    found = _converted(array, kind)
    misfits = pc.and_not(found.is_null(), array.is_null())
    is_wrong: Mask = misfits.to_numpy(zero_copy_only=False)
    return found, is_wrong if is_wrong.any() else None


def _fit_struct(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    given = {
        field.name.lower(): (field.name, child)
        for field, child in zip(array.type, array.flatten(), strict=True)
    }
    fields: list[tuple[str, pa.Array]] = []
    wrong: Mask | None = None
    for field in kind:
        _, child = given.pop(field.name.lower(), ("", None))
        if child is None:
            fields.append((field.name, pa.nulls(len(array), field.type)))
            continue
        fitted, misfits = _fit(child, field.type)
        fields.append((field.name, fitted))
        wrong = _either(wrong, misfits)
    fields += given.values()
    found = pa.StructArray.from_arrays(
        [child for _, child in fields], [name for name, _ in fields], mask=array.is_null()
    )
    return found, wrong


def _fit_list(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    sizes = _sizes(array)
    values, misfits = _fit(array.flatten(), kind.value_type)
    found = pa.ListArray.from_arrays(_bounds(sizes), values, mask=array.is_null())
    return found, _of_rows(misfits, sizes)


def _fit_map(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    entries = array.cast(pa.list_(pair))
    sizes, pairs = _sizes(entries), entries.flatten()
    keys, wrong_keys = _fit(pairs.field("key"), kind.key_type)
    items, wrong_items = _fit(pairs.field("value"), kind.item_type)
    found = pa.MapArray.from_arrays(_bounds(sizes), keys, items, mask=array.is_null())
    return found, _of_rows(_either(wrong_keys, wrong_items), sizes)


def _sizes(lists: pa.Array) -> Ints:
    found: Ints = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return found


def _bounds(sizes: Ints) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def _of_rows(misfits: Mask | None, sizes: Ints) -> Mask | None:
    """Which rows have an element that does not fit."""
    if misfits is None:
        return None
    wrong: Mask = np.zeros(len(sizes), np.bool_)
    wrong[np.repeat(np.arange(len(sizes)), sizes)[misfits]] = True
    return wrong


def _either(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return one if other is None else other
    found: Mask = one | other
    return found


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array with another type; null for a value that would not be the same there."""
    convert = _conversion(array.type, kind)
    if convert is None:
        return pa.nulls(len(array), kind)
    try:
        return convert(array)
    except pa.ArrowInvalid:
        return pa.concat_arrays(
            [_alone(convert, array[row : row + 1], kind) for row in range(len(array))]
        )


def _alone(convert: Callable[[pa.Array], pa.Array], value: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return convert(value)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _conversion(given: pa.DataType, kind: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """What makes one of the other; it raises, or gives nulls, where the value would not stay."""
    types = pa.types
    is_whole, is_float, is_decimal = (
        (check(given), check(kind))
        for check in (types.is_integer, types.is_floating, types.is_decimal)
    )
    if (is_whole[0] or is_decimal[0]) and (is_whole[1] or is_decimal[1]):
        return lambda array: array.cast(kind)
    if is_whole[0] and is_float[1]:
        return lambda array: array.cast(kind)
    if is_float[0] and is_whole[1]:
        return lambda array: _where(pc.less(pc.abs(array), _EXACT_MAX), array).cast(kind)
    if is_float[0] and is_float[1]:
        return lambda array: _same_float(array, array.cast(kind))
    if types.is_string(kind) and (is_whole[0] or is_float[0] or is_decimal[0]):
        return lambda array: array.cast(kind)
    if types.is_string(kind) and (types.is_boolean(given) or types.is_date(given)):
        return lambda array: array.cast(kind)
    if (
        types.is_timestamp(given)
        and types.is_timestamp(kind)
        and (given.tz is None) == (kind.tz is None)
    ):
        return lambda array: array.cast(kind)
    return None


def _where(is_so: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(is_so, array, pa.scalar(None, array.type))


def _same_float(array: pa.Array, found: pa.Array) -> pa.Array:
    same = pc.or_(pc.equal(found.cast(array.type), array), pc.is_nan(array))
    return _where(same, found)
