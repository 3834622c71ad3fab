"""The columns of a read: what messages have, and what is in their bodies.

Invariant: a `Table` can be read: each of its columns is one of messages, with the type that it has
there, or one that its body format gives.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from onelog.errors import ConfigError
from onelog.spark.columns import schema as columns
from onelog.spark.columns.schema import arrow_schema
from onelog.spark.options import Corruption, Decode, ReadOptions

if TYPE_CHECKING:
    from onelog.spark.bodies.decoding import BodyFormat
    from onelog.spark.columns.messages import RecordDecoder

Sample = Callable[[int], Iterable[bytes]]
"""Gives the bodies of so many messages, or fewer."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, and how they are had."""

    schema: StructType
    bodies: "BodyFormat | None" = None

    def decoder(self, on_corruption: Corruption) -> "RecordDecoder":
        """What makes rows of records, in a task."""
        from onelog.spark.columns.messages import RecordDecoder

        arrow = arrow_schema(self.schema)
        if self.bodies is None:
            return RecordDecoder(arrow.names, arrow, on_corruption=on_corruption)
        typed = set(self.bodies.schema.fieldNames())
        names = [name for name in arrow.names if name not in typed]
        return RecordDecoder(
            names, arrow, bodies=self.bodies.reader(arrow), on_corruption=on_corruption
        )


def own_table(options: ReadOptions, sample: Sample) -> Table:
    """The table that the options describe; where they leave it open, a sample tells."""
    if options.decode is None:
        return Table(columns.spark_schema(options.columns or columns.ALL))
    from onelog.spark.bodies.decoding import message_columns

    bodies = _format(options.decode, sample)
    names = message_columns(options.columns, bodies.schema)
    own = columns.spark_schema(names)
    return Table(StructType([*own.fields, *bodies.schema.fields]), bodies)


def given_table(options: ReadOptions, schema: StructType, sample: Sample) -> Table:
    """A table with a schema that somebody gave; `ConfigError` if messages do not have that."""
    if not schema.fields:
        raise ConfigError("schema: it has no columns")
    bodies = None
    if options.decode is not None:
        bodies = _known_format(options.decode, schema) or _format(options.decode, sample)
    typed = {} if bodies is None else {each.name: each.dataType for each in bodies.schema}
    own = columns.spark_schema([name for name in schema.fieldNames() if name not in typed])
    kinds = {**typed, **{each.name: each.dataType for each in own}}
    for each in schema.fields:
        kind = kinds[each.name]
        if each.dataType != kind:
            raise ConfigError(
                f"schema: the column {each.name} is {kind.simpleString()}, and not "
                f"{each.dataType.simpleString()}: leave the schema out, and cast it afterwards"
            )
    return Table(schema, bodies)


def _known_format(decode: Decode, schema: StructType) -> "BodyFormat | None":
    """For JSON without a schema of its own: what is no column of messages is in the bodies."""
    if decode.form != "json" or not decode.needs_sample:
        return None
    fields = [
        each for each in schema.fields if each.name not in (*columns.ALL, columns.INCARNATION)
    ]
    if not fields:
        return None
    from onelog.spark.bodies.decoding import json_format

    return json_format(StructType(fields), decode.mode)


def _format(decode: Decode, sample: Sample) -> "BodyFormat":
    from onelog.spark.bodies.decoding import body_format

    return body_format(decode, sample(decode.sample_records) if decode.needs_sample else ())
