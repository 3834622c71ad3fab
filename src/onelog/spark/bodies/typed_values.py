"""Values that were decoded one by one, as typed Arrow columns.

Each form of a body gives Python values, row by row; here they become arrays of the types that the
schema asks for. What does not fit is an error of its row, and leaves that row without any value.

Invariant: `columns` gives one array per field and one error or None per row, and a row with an
error is null in all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

Values = list[object]
Column: TypeAlias = "Values | pa.Array"
"""Of one field, the values of all rows or, if that is done already, an array of its type."""
NOT_FITTING = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
"""What Arrow raises for a value that is not of a type; a text that is no UTF-8 is a ValueError."""


@dataclass(slots=True)
class Decoded:
    """The values of each field, row by row, and what was wrong with rows."""

    values: list[Column]
    errors: dict[int, str] = field(default_factory=dict)

    def fail(self, row: int, reason: str) -> None:
        """Let a row have an error, and no values."""
        self.errors[row] = reason
        self.put(row, [None] * len(self.values))

    def put(self, row: int, found: Sequence[object]) -> None:
        """Let a row have other values."""
        for number, (values, value) in enumerate(zip(self.values, found, strict=True)):
            if isinstance(values, pa.Array):
                self.values[number] = values = values.to_pylist()
            values[row] = value


def columns(fields: Sequence[pa.Field], decoded: Decoded) -> tuple[list[pa.Array], dict[int, str]]:
    """The arrays, and the errors by row."""
    arrays: list[pa.Array] = []
    misfits: dict[int, str] = {}
    for each, values in zip(fields, decoded.values, strict=True):
        try:
            is_done = isinstance(values, pa.Array)
            arrays.append(values if is_done else pa.array(values, each.type))
        except NOT_FITTING:
            for row, value in enumerate(values):
                if row not in misfits and (reason := _misfit(value, each)):
                    misfits[row] = reason
    if not misfits:
        assert len(arrays) == len(fields), "no single value is wrong, but all together are"
        return arrays, decoded.errors
    for row, reason in misfits.items():
        decoded.fail(row, reason)
    return columns(fields, decoded)


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
