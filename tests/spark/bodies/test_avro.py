"""Avro records become columns, whatever types they have."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import ConfigError
from onelog.spark.bodies.avro import AvroBodies, parse_schema, schema_in_sample, spark_fields
from onelog.spark.bodies.typed_values import columns
from tests.spark.record_samples import QUICK, to_arrow

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {
                            "name": "at",
                            "type": ["null", {"type": "int", "logicalType": "time-millis"}],
                        },
                    ],
                },
            },
        },
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "either", "type": ["int", "long", "null"]},
        {"name": "number", "type": ["int", "double"]},
        {"name": "any", "type": ["null", "string", {"type": "array", "items": "Item"}]},
    ],
}
VALUE = {
    "id": 7,
    "note": None,
    "price": Decimal("12.50"),
    "state": "PAID",
    "before": "NEW",
    "day": date(2026, 11, 15),
    "at": datetime(2026, 11, 15, 12, 0, 0, 5, tzinfo=UTC),
    "wall": datetime(2026, 11, 15, 12),  # noqa: DTZ001
    "opens": time(8, 30, 0, 1000),
    "ref": UUID(int=5),
    "hash": b"abcd",
    "items": [{"sku": "a", "at": None}, {"sku": "b", "at": time(1)}],
    "counts": {"x": 1, "y": None},
    "either": 1 << 40,
    "number": 3,
    "any": [{"sku": "z", "at": None}],
}
EXPECTED = {
    **VALUE,
    "opens": 30_600_001_000,
    "ref": "00000000-0000-0000-0000-000000000005",
    "items": [{"sku": "a", "at": None}, {"sku": "b", "at": 3_600_000_000}],
    "counts": [("x", 1), ("y", None)],
    "number": 3.0,
    "any": '[{"sku":"z","at":null}]',
}


def written(schema: object, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)  # type: ignore[arg-type]
    return stream.getvalue()


def container(schema: object, *values: object) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, schema, values)  # type: ignore[arg-type]
    return stream.getvalue()


def decoded(
    schema: object, *bodies: bytes, containers: bool = False, only: tuple[str, ...] = ()
) -> tuple[list[dict[str, object]], dict[int, str]]:
    text = parse_schema(json.dumps(schema))
    fields = [f for f in to_arrow(spark_fields(text)) if not only or f.name in only]
    arrays, errors = columns(fields, AvroBodies(text, fields, containers=containers).decode(bodies))
    rows = zip(*(array.to_pylist() for array in arrays), strict=True)
    return [dict(zip([f.name for f in fields], row, strict=True)) for row in rows], errors


def test_every_type_has_a_column() -> None:
    text = parse_schema(json.dumps(ORDER))
    assert spark_fields(text).simpleString() == (
        "struct<id:bigint,note:string,price:decimal(9,2),state:string,before:string,day:date,"
        "at:timestamp,wall:timestamp_ntz,opens:bigint,ref:string,hash:binary,"
        "items:array<struct<sku:string,at:bigint>>,counts:map<string,int>,either:bigint,"
        "number:double,any:string>"
    )


def test_records_become_rows() -> None:
    rows, errors = decoded(ORDER, written(ORDER, VALUE), written(ORDER, {**VALUE, "note": "hello"}))
    assert errors == {}
    assert rows == [EXPECTED, {**EXPECTED, "note": "hello"}]


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    rows, _ = decoded(ORDER, written(ORDER, VALUE), only=("id", "opens"))
    assert rows == [{"id": 7, "opens": 30_600_001_000}]


@QUICK
@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=9)), max_size=6))
def test_what_is_written_is_read(values: list[tuple[int, str]]) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "t", "type": "string"},
        ],
    }
    rows, errors = decoded(schema, *(written(schema, {"n": n, "t": t}) for n, t in values))
    assert errors == {}
    assert rows == [{"n": n, "t": t} for n, t in values]


def test_a_schema_that_is_no_record_has_one_column() -> None:
    assert decoded("string", written("string", "hello")) == ([{"value": "hello"}], {})


def test_other_bytes_are_errors_of_their_rows() -> None:
    good = written(ORDER, VALUE)
    rows, errors = decoded(ORDER, good, b"", good[:-1], good + b"x", b"\xff" * 40)
    assert rows[0] == EXPECTED
    assert errors.keys() == {1, 2, 3, 4}
    assert all(value is None for row in rows[1:] for value in row.values())
    assert "1 bytes are left over" in errors[3]


@QUICK
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_garbage_raises_nothing(bodies: list[bytes]) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "n", "type": ["null", "long"]},
            {"name": "t", "type": "string"},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    rows, errors = decoded(schema, *bodies)
    assert len(rows) == len(bodies)
    for row in errors:
        assert set(rows[row].values()) == {None}


def test_container_files_bring_their_schema() -> None:
    bodies = [container(ORDER, VALUE), b"other", container(ORDER, VALUE, VALUE)]
    assert spark_fields(schema_in_sample([b"x", b"Obj\x01broken", *bodies])) == (
        spark_fields(parse_schema(json.dumps(ORDER)))
    )
    rows, errors = decoded(ORDER, *bodies, containers=True)
    assert rows[0] == EXPECTED
    assert errors.keys() == {1, 2}
    assert "2 records" in errors[2]


def test_bodies_without_a_schema_anywhere_are_refused() -> None:
    with pytest.raises(ConfigError, match="give their schema with the option schema"):
        schema_in_sample([b"x"])


def test_a_record_inside_of_itself_is_refused() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [
            {"name": "left", "type": ["null", "Tree"]},
        ],
    }
    with pytest.raises(ConfigError, match="'left' holds records of the kind that it is in"):
        spark_fields(parse_schema(json.dumps(tree)))


@pytest.mark.parametrize("text", ["", "{", "[]x", '{"type": "nothing"}', '{"type": "record"}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no Avro schema"):
        parse_schema(text)
