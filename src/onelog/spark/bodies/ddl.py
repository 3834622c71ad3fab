"""Schemas written as DDL, `id BIGINT, items ARRAY<STRUCT<sku: STRING, n: INT>>`, read in Python.

Spark's own parser is in its JVM, and the processes in which a data source is asked for its schema
have none.

Invariant: what is read means what Spark makes of the same text; what is not understood is refused
with the place of it.
"""

import re

from pyspark.sql import types as sql

from onelog.errors import ConfigError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_]\w*)|('(?:[^'\\]|\\.)*')|(\d+)|([<>,:()]))")
_SIMPLE: dict[str, type[sql.DataType]] = {
    "boolean": sql.BooleanType, "tinyint": sql.ByteType, "byte": sql.ByteType,
    "smallint": sql.ShortType, "short": sql.ShortType, "int": sql.IntegerType,
    "integer": sql.IntegerType, "bigint": sql.LongType, "long": sql.LongType,
    "float": sql.FloatType, "real": sql.FloatType, "double": sql.DoubleType,
    "date": sql.DateType, "timestamp": sql.TimestampType, "timestamp_ltz": sql.TimestampType,
    "timestamp_ntz": sql.TimestampNTZType, "string": sql.StringType, "binary": sql.BinaryType,
}  # fmt: skip
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
        start = self._at
        if self._word() == "struct" and self._next("<"):
            fields = self._fields(">")
        else:
            self._at = start
            fields = self._fields("")
        if self._text[self._at :].strip():
            raise self._complaint("nothing more")
        return sql.StructType(fields)

    # -- tokens ----------------------------------------------------------------------------------

    def _peek(self) -> tuple[str, int]:
        match = _TOKEN.match(self._text, self._at)
        return (match.group().strip(), match.end()) if match else ("", self._at)

    def _next(self, wanted: str) -> bool:
        token, end = self._peek()
        if token != wanted or not wanted:
            return False
        self._at = end
        return True

    def _require(self, wanted: str) -> None:
        if not self._next(wanted):
            raise self._complaint(repr(wanted))

    def _word(self) -> str:
        """The next word in small letters; an empty one if something else comes."""
        token, end = self._peek()
        if not token or not (token[0].isalpha() or token[0] == "_"):
            return ""
        self._at = end
        return token.lower()

    def _number(self) -> int:
        token, end = self._peek()
        if not token.isdigit():
            raise self._complaint("a number")
        self._at = end
        return int(token)

    def _complaint(self, wanted: str) -> ConfigError:
        rest = self._text[self._at :].strip()
        found = f"at {rest[:30]!r}" if rest else "at its end"
        return ConfigError(f"schema: {self._text!r} has no meaning {found}: {wanted} is expected")

    # -- grammar ---------------------------------------------------------------------------------

    def _fields(self, closing: str) -> list[sql.StructField]:
        fields: list[sql.StructField] = []
        if closing and self._next(closing):
            return fields
        while True:
            fields.append(self._field())
            if closing and self._next(closing):
                return fields
            if not closing and not self._peek()[0]:
                return fields
            self._require(",")

    def _field(self) -> sql.StructField:
        token, end = self._peek()
        if token.startswith("`"):
            name = token[1:-1].replace("``", "`")
        elif token and (token[0].isalpha() or token[0] == "_"):
            name = token
        else:
            raise self._complaint("the name of a field")
        self._at = end
        self._next(":")
        kind = self._type()
        nullable, metadata = True, {}
        while token := self._modifier():
            if token == "not":
                if self._word() != "null":
                    raise self._complaint("NULL")
                nullable = False
            else:
                metadata["comment"] = self._quoted()
        return sql.StructField(name, kind, nullable, metadata)

    def _modifier(self) -> str:
        start = self._at
        word = self._word()
        if word not in ("not", "comment"):
            self._at = start
            return ""
        return word

    def _quoted(self) -> str:
        token, end = self._peek()
        if not token.startswith("'"):
            raise self._complaint("a text in quotes")
        self._at = end
        return re.sub(r"\\(.)", r"\1", token[1:-1])

    def _type(self) -> sql.DataType:
        start = self._at
        word = self._word()
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in ("char", "character", "varchar"):
            self._require("(")
            self._number()
            self._require(")")
            return sql.StringType()
        if word in _DECIMALS:
            return self._decimal()
        if word == "array":
            self._require("<")
            element = self._type()
            self._require(">")
            return sql.ArrayType(element)
        if word == "map":
            self._require("<")
            key = self._type()
            self._require(",")
            value = self._type()
            self._require(">")
            return sql.MapType(key, value)
        if word == "struct":
            self._require("<")
            return sql.StructType(self._fields(">"))
        self._at = start
        raise self._complaint("a type")

    def _decimal(self) -> sql.DecimalType:
        precision, scale = 10, 0
        if self._next("("):
            precision = self._number()
            if self._next(","):
                scale = self._number()
            self._require(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise ConfigError(
                f"schema: there is no DECIMAL({precision}, {scale}): up to 38 digits, and no more "
                "of them behind the point"
            )
        return sql.DecimalType(precision, scale)
