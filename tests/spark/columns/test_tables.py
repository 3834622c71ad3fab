"""The columns that a read has."""

import pickle
from collections.abc import Iterable

import pytest
from pyspark.sql.types import StructType

from onelog.errors import ConfigError
from onelog.spark.bodies.ddl import parse_ddl
from onelog.spark.columns.schema import ALL
from onelog.spark.columns.tables import Table, given_table, own_table
from onelog.spark.options import read_options

SAMPLE = [b'{"id": 7, "price": 1.5}', b"not json", b'{"id": 8, "note": "x"}']


def nobody(count: int) -> Iterable[bytes]:
    raise AssertionError("no sample is needed")


def own(**options: str) -> Table:
    return own_table(read_options({"subscribe": "t", **options}), nobody)


def given(schema: StructType, /, **options: str) -> Table:
    return given_table(read_options({"subscribe": "t", **options}), schema, nobody)


def test_without_any_wish_there_are_all_columns_of_messages() -> None:
    assert own().schema.fieldNames() == list(ALL)
    assert own(columns="body, offset").schema.fieldNames() == ["body", "offset"]


def test_decoded_columns_follow_those_of_messages() -> None:
    table = own(decode="json", schema="id long, price double", columns="offset,body")
    assert table.schema.fieldNames() == ["offset", "body", "id", "price", "_error"]
    strict = own(decode="json", schema="id long", mode="failfast", columns="offset")
    assert strict.schema.fieldNames() == ["offset", "id"]


def test_without_a_wish_decoded_bodies_take_the_place_of_raw_ones() -> None:
    names = own(decode="json", schema="id long, offset long").schema.fieldNames()
    assert "body" not in names
    assert names.count("offset") == 1
    assert names[-3:] == ["id", "offset", "_error"]


def test_a_schema_that_is_left_open_is_inferred_from_a_sample() -> None:
    asked: list[int] = []

    def sample(count: int) -> Iterable[bytes]:
        asked.append(count)
        return SAMPLE

    options = read_options({"subscribe": "t", "decode": "json", "columns": "offset"})
    table = own_table(options, sample)
    assert asked == [1_000]
    assert set(table.schema.fieldNames()) == {"offset", "id", "price", "note", "_error"}
    assert pickle.loads(pickle.dumps(table)) == table


def test_a_given_schema_says_what_is_in_json_bodies() -> None:
    table = given(parse_ddl("offset long, id long, _error string"), decode="json")
    assert table.bodies is not None
    assert table.bodies.fields.fieldNames() == ["id"]
    assert table.decoder("fail").names == ("offset",)


def test_a_given_schema_may_leave_columns_out() -> None:
    table = given(parse_ddl("price double"), decode="json", schema="id long, price double")
    assert table.schema.fieldNames() == ["price"]


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("offset string", {}, "the column offset is bigint, and not string"),
        ("price int", {}, "there is no column 'price'"),
        (
            "price int",
            {"decode": "json", "schema": "price double"},
            "the column price is double, and not int",
        ),
        ("cost int", {"decode": "json", "schema": "price double"}, "no column 'cost'"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(
    schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        given(parse_ddl(schema), **options)
    assert said in str(caught.value)


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="no columns"):
        given(StructType([]))
