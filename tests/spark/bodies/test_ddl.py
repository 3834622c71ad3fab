"""DDL texts mean what Spark makes of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onelog.errors import ConfigError
from onelog.spark.bodies.ddl import parse_ddl
from tests.spark.record_samples import QUICK

SIMPLE = st.sampled_from(
    [
        BooleanType(),
        ByteType(),
        ShortType(),
        IntegerType(),
        LongType(),
        FloatType(),
        DoubleType(),
        DecimalType(10, 2),
        DateType(),
        TimestampType(),
        TimestampNTZType(),
        StringType(),
        BinaryType(),
    ]
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


def structs(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    return st.lists(st.builds(StructField, NAMES, inner), min_size=1, max_size=4).map(StructType)


TYPES = st.recursive(
    SIMPLE,
    lambda inner: st.builds(ArrayType, inner) | st.builds(MapType, inner, inner) | structs(inner),
    max_leaves=6,
)


@QUICK
@given(structs(TYPES))
def test_what_spark_writes_is_read_back(schema: StructType) -> None:
    assert parse_ddl(schema.simpleString()) == schema
    fields = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)
    assert parse_ddl(fields) == schema


def test_words_may_be_in_capitals_and_have_other_names() -> None:
    assert parse_ddl("a INTEGER, b Long, c dec(5), d NUMERIC(5,2), e varchar(20), f REAL") == (
        parse_ddl("a int, b bigint, c decimal(5,0), d decimal(5,2), e string, f float")
    )


def test_names_nullability_and_comments() -> None:
    schema = parse_ddl(
        "`a b``c` int NOT NULL COMMENT 'it''s' , d: string comment 'x\\'y'".replace("''", "")
    )
    assert schema.fields == [
        StructField("a b`c", IntegerType(), False, {"comment": "its"}),
        StructField("d", StringType(), True, {"comment": "x'y"}),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "at its end: the name of a field is expected"),
        ("a", "at its end: a type is expected"),
        ("a strnig", "at 'strnig': a type is expected"),
        ("a int,", "at its end: the name of a field is expected"),
        ("a int b int", "at 'b int': ',' is expected"),
        ("a array<int", "at its end: '>' is expected"),
        ("a map<int>", "at '>': ',' is expected"),
        ("struct<a:int> x", "at 'x': nothing more is expected"),
        ("a decimal(50,2)", r"no DECIMAL\(50, 2\)"),
        ("a decimal(x)", "at 'x\\)': a number is expected"),
        ("a int not", "NULL is expected"),
        ("a int comment x", "a text in quotes is expected"),
        ("a int; b int", "at '; b int': ',' is expected"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_ddl(text)


@QUICK
@given(st.text(max_size=30))
def test_garbage_raises_a_config_error_and_nothing_else(text: str) -> None:
    try:
        parse_ddl(text)
    except ConfigError:
        pass
