"""Schemas written as DDL, `id BIGINT, items ARRAY<STRUCT<sku: STRING, n: INT>>`, read in Python.

Spark's own parser is in its JVM, and the processes in which a data source is asked for its schema
have none.

Invariant: what is read means what Spark makes of the same text; what is not understood is refused
with the place of it.
"""

import re

from pyspark.sql import types as sql

from onelog.errors import ConfigError

_WORD = r"[A-Za-z_]\w*"
_SIMPLE: dict[str, type[sql.DataType]] = {
    "boolean": sql.BooleanType,
    "tinyint": sql.ByteType,
    "byte": sql.ByteType,
    "smallint": sql.ShortType,
    "short": sql.ShortType,
    "int": sql.IntegerType,
    "integer": sql.IntegerType,
    "bigint": sql.LongType,
    "long": sql.LongType,
    "float": sql.FloatType,
    "real": sql.FloatType,
    "double": sql.DoubleType,
    "date": sql.DateType,
    "timestamp": sql.TimestampType,
    "timestamp_ltz": sql.TimestampType,
    "timestamp_ntz": sql.TimestampNTZType,
    "string": sql.StringType,
    "binary": sql.BinaryType,
}
_DECIMALS = ("decimal", "dec", "numeric")


def parse_ddl(text: str) -> sql.StructType:
    """The schema that a DDL text describes; `ConfigError` if it describes none."""
    return _Reader(text).schema()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def schema(self) -> sql.StructType:
        """The whole text: fields, or one struct of them."""
        fields = self._fields(">" if self._try(r"(?i:struct)\s*<") else "")
        if self._text[self._at :].strip():
            raise self._complaint("nothing more")
        return sql.StructType(fields)

    def _try(self, pattern: str) -> str:
        """What comes next, if it looks like this; else nothing."""
        match = re.compile(rf"\s*({pattern})").match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group(1)

    def _take(self, pattern: str, wanted: str) -> str:
        found = self._try(pattern)
        if not found:
            raise self._complaint(wanted)
        return found

    def _require(self, mark: str) -> None:
        self._take(re.escape(mark), repr(mark))

    def _complaint(self, wanted: str) -> ConfigError:
        rest = self._text[self._at :].strip()
        found = f"at {rest[:30]!r}" if rest else "at its end"
        return ConfigError(f"schema: {self._text!r} has no meaning {found}: {wanted} is expected")

    def _fields(self, closing: str) -> list[sql.StructField]:
        fields: list[sql.StructField] = []
        if closing and self._try(closing):
            return fields
        while True:
            fields.append(self._field())
            if self._try(closing) if closing else not self._text[self._at :].strip():
                return fields
            self._require(",")

    def _field(self) -> sql.StructField:
        name = self._take(rf"`(?:[^`]|``)+`|{_WORD}", "the name of a field")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        self._try(":")
        kind = self._type()
        nullable, metadata = True, {}
        while word := self._try(r"(?i:not|comment)\b"):
            if word.lower() == "not":
                self._take(r"(?i:null)\b", "NULL")
                nullable = False
            else:
                quoted = self._take(r"'(?:[^'\\]|\\.)*'", "a text in quotes")
                metadata["comment"] = re.sub(r"\\(.)", r"\1", quoted[1:-1])
        return sql.StructField(name, kind, nullable, metadata)

    def _type(self) -> sql.DataType:
        start = self._at
        word = self._try(_WORD).lower()
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in ("char", "character", "varchar"):
            self._require("(")
            self._number()
            self._require(")")
            return sql.StringType()
        if word in _DECIMALS:
            return self._decimal()
        if word not in ("array", "map", "struct"):
            self._at = start
            raise self._complaint("a type")
        self._require("<")
        if word == "struct":
            return sql.StructType(self._fields(">"))
        first = self._type()
        if word == "map":
            self._require(",")
            found: sql.DataType = sql.MapType(first, self._type())
        else:
            found = sql.ArrayType(first)
        self._require(">")
        return found

    def _number(self) -> int:
        return int(self._take(r"\d+", "a number"))

    def _decimal(self) -> sql.DecimalType:
        precision, scale = 10, 0
        if self._try(r"\("):
            precision = self._number()
            if self._try(","):
                scale = self._number()
            self._require(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise ConfigError(
                f"schema: there is no DECIMAL({precision}, {scale}): up to 38 digits, and no more "
                "of them behind the point"
            )
        return sql.DecimalType(precision, scale)
