"""Values that were decoded one by one, as typed Arrow columns.

Each form of a body gives Python values, row by row; here they become arrays of the types that the
schema asks for. What does not fit is an error of its row, and leaves that row without any value.

Invariant: `columns` gives one array per field and one error or None per row, and a row with an
error is null in all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

Values = list[object]
NOT_FITTING = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
"""What Arrow raises for a value that is not of a type; a text that is no UTF-8 is a ValueError."""


@dataclass(slots=True)
class Decoded:
    """The values of each field, row by row, and what was wrong with rows."""

    values: list[Values]
    errors: dict[int, str] = field(default_factory=dict)


def columns(fields: Sequence[pa.Field], decoded: Decoded) -> tuple[list[pa.Array], dict[int, str]]:
    """The arrays, and the errors by row."""
    errors = dict(decoded.errors)
    arrays: list[pa.Array] = []
    for each, values in zip(fields, decoded.values, strict=True):
        try:
            arrays.append(pa.array(values, each.type))
        except NOT_FITTING:
            for row, value in enumerate(values):
                if row not in errors and (reason := _misfit(value, each)):
                    errors[row] = reason
    if errors.keys() == decoded.errors.keys():
        assert len(arrays) == len(fields), "no single value is wrong, but all together are"
        return arrays, errors
    for row in errors.keys() - decoded.errors.keys():
        for values in decoded.values:
            values[row] = None
    return columns(fields, Decoded(decoded.values, errors))


def _misfit(value: object, field_: pa.Field) -> str | None:
    try:
        pa.array([value], field_.type)
    except NOT_FITTING as error:
        return f"{field_.name}: {shown(value)} is no {field_.type}: {error}"
    return None


def shown(value: object) -> str:
    """A value for an error message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


Convert = Callable[[object], object]
"""Makes a value one that Arrow takes, or raises ValueError."""
