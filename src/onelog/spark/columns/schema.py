"""The columns that messages have, and which rows are wanted: all that a query is planned with.

Invariant: nothing here needs Arrow, which planning does without: it takes more memory than all the
rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from onelog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _BYTES, _INT, _LONG, _TIME = (
    StringType(),
    BinaryType(),
    IntegerType(),
    LongType(),
    TimestampType(),
)
_HEADER = StructType([StructField("key", _TEXT), StructField("value", _BYTES)])
INCARNATION = "_incarnation"
"""When the topic was made on that broker, in milliseconds; 0 if nobody knows. Only who asks for
this column gets it: offsets mean something within one incarnation only (see `offsets`)."""
TYPES: dict[str, DataType] = {
    "topic": _TEXT,
    "queue": _INT,
    "offset": _LONG,
    "key": _TEXT,
    "key_bytes": _BYTES,
    "tags": _TEXT,
    "body": _BYTES,
    "properties": MapType(_TEXT, _TEXT),
    "headers": ArrayType(_HEADER),
    "born_time": _TIME,
    "store_time": _TIME,
    "message_id": _TEXT,
    "flag": _INT,
    "broker": _TEXT,
    "log_offset": _LONG,
    INCARNATION: _LONG,
}
ALL = tuple(name for name in TYPES if name != INCARNATION)
"""The columns there are, in the order in which a table has them."""


def spark_schema(names: Sequence[str]) -> StructType:
    """The schema of a table with these columns; `ConfigError` for a column that there is not."""
    unknown = [name for name in names if name not in TYPES]
    if unknown:
        raise ConfigError(f"columns: there is no column {unknown[0]!r}; there are {', '.join(ALL)}")
    return StructType([StructField(name, TYPES[name]) for name in names])


def arrow_schema(schema: StructType) -> "pa.Schema":
    """The Arrow schema that Spark insists on."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Before 4.2 the zone is not the caller's business.
        return to_arrow_schema(schema)


@dataclass(frozen=True, slots=True)
class RowFilters:
    """Which rows are wanted; the others are dropped before their bodies are decoded."""

    tags: frozenset[str] | None = None
    store_ms_from: int | None = None
    """The first store time that is wanted."""
    store_ms_until: int | None = None
    """The first store time that is not wanted any more."""


EVERY_ROW = RowFilters()


@dataclass(frozen=True, slots=True)
class Selection:
    """Where records come from, and which of their rows are wanted."""

    broker: str
    topic: str | None = None
    """The topic of the queue that was read, which may not be the one that a record names: a row's
    topic, queue and offset are the ones that its record has there."""
    first_offset: int | None = None
    end_offset: int | None = None
    filters: RowFilters = EVERY_ROW
    incarnation: int = 0
