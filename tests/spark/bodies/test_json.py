"""JSON objects become columns; the strict way and the lenient one agree."""

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import ConfigError
from onelog.spark.bodies.json import JsonBodies, infer_schema
from onelog.spark.bodies.typed_values import columns
from tests.spark.record_samples import QUICK, to_arrow

TIMESTAMP = pa.timestamp("us", "UTC")
ORDER = [
    pa.field("id", pa.int64()),
    pa.field("price", pa.float64()),
    pa.field("category", pa.string()),
    pa.field("paid", pa.bool_()),
    pa.field("at", TIMESTAMP),
]


def decoded(
    fields: list[pa.Field], *bodies: object
) -> tuple[list[dict[str, object]], dict[int, str]]:
    raw = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in bodies]
    arrays, errors = columns(fields, JsonBodies(fields).decode(raw))
    names = [field.name for field in fields]
    rows = zip(*(array.to_pylist() for array in arrays), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows], errors


def one(kind: pa.DataType, value: object) -> object:
    rows, errors = decoded([pa.field("x", kind)], {"x": value})
    assert errors == {}
    return rows[0]["x"]


def refused(kind: pa.DataType, value: object) -> str:
    rows, errors = decoded([pa.field("x", kind)], {"x": value})
    assert rows == [{"x": None}]
    return errors[0]


def test_objects_become_rows() -> None:
    rows, errors = decoded(
        ORDER,
        {"id": 7, "price": 1.5, "category": "books", "paid": True, "at": "2026-11-15T12:00:00Z"},
        {"category": None, "price": 2, "other": [1, {"deep": "x"}]},
        {},
    )
    assert errors == {}
    nothing = dict.fromkeys(["id", "price", "category", "paid", "at"])
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert rows == [
        {"id": 7, "price": 1.5, "category": "books", "paid": True, "at": noon},
        {**nothing, "price": 2.0},
        nothing,
    ]


def test_what_is_no_object_is_an_error_of_its_row_alone() -> None:
    rows, errors = decoded(
        ORDER[:1], {"id": 1}, b"", b"{", b"[1]", b"null", b"\xff", b'{"id": 1} x', {"id": 2}
    )
    assert [row["id"] for row in rows] == [1, *[None] * 6, 2]
    assert errors.keys() == set(range(1, 7))
    assert "[1] is no JSON object" in errors[3]
    assert "trailing characters" in errors[6]


def test_a_value_of_another_type_spoils_the_whole_row_and_says_where() -> None:
    rows, errors = decoded(ORDER[:3], {"id": "7", "price": 1, "category": "c"})
    assert rows == [{"id": None, "price": None, "category": None}]
    assert errors == {0: "id: '7' is no whole number"}


def test_each_type_takes_what_has_its_meaning() -> None:
    assert one(pa.int8(), -128) == -128
    assert one(pa.float32(), 0.5) == 0.5
    assert one(pa.decimal128(6, 2), 12.345) == Decimal("12.35")
    assert one(pa.decimal128(6, 2), "12.3") == Decimal("12.30")
    assert one(pa.decimal128(38, 0), int("9" * 38)) == Decimal("9" * 38)
    assert one(pa.date32(), "2026-11-15") == date(2026, 11, 15)
    assert one(TIMESTAMP, "2026-11-15T13:00:00+01:00") == datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert one(TIMESTAMP, "2026-11-15 12:00") == datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert one(TIMESTAMP, 1.5) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert one(pa.timestamp("us"), "2026-11-15T12:00:00") == datetime(2026, 11, 15, 12)  # noqa: DTZ001
    assert one(pa.binary(), base64.b64encode(b"\0\xff").decode()) == b"\0\xff"
    assert one(pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}) == [("a", 1), ("b", None)]
    assert one(pa.list_(TIMESTAMP), [0, None]) == [datetime(1970, 1, 1, tzinfo=UTC), None]


def test_nested_values_are_decoded() -> None:
    item = pa.struct([("sku", pa.string()), ("price", pa.decimal128(8, 2)), ("at", TIMESTAMP)])
    assert one(pa.list_(item), [{"sku": "a", "price": 1.5, "more": 1}, {}, None]) == [
        {"sku": "a", "price": Decimal("1.50"), "at": None},
        {"sku": None, "price": None, "at": None},
        None,
    ]
    by_name = pa.map_(pa.string(), item)
    assert one(by_name, {"k": {"at": 0}}) == [
        ("k", {"sku": None, "price": None, "at": datetime(1970, 1, 1, tzinfo=UTC)})
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ["2026-11-15T12:00:00Z", "2026-11-15T12:00:00.123456+05:30", None],
        ["2026-11-15T12:00:00", "2026-11-15 12:00", "2026-11-15"],
        ["2026-11-15T12:00:00Z", "2026-11-15T12:00:00"],
        ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z"],
        ["2026-11-15T12:00:00.123456789Z"],
        ["2026-11-15T12:00:00Z", "x"],
        ["\ud800"],
        [],
        [None],
    ],
)
def test_times_are_the_same_alone_and_in_company(texts: list[str | None]) -> None:
    fields = [pa.field("at", TIMESTAMP)]
    together, errors = decoded(fields, *({"at": text} for text in texts))
    for row, text in enumerate(texts):
        alone, error = decoded(fields, {"at": text}, {"at": 0})
        assert together[row] == alone[0]
        assert (row in errors) == (0 in error)


def test_anything_can_be_read_as_text() -> None:
    assert one(pa.string(), 5) == "5"
    assert one(pa.string(), {"a": [1, None, True]}) == '{"a":[1,null,true]}'
    assert one(pa.list_(pa.string()), ["a", 1]) == ["a", "1"]
    rows, _ = decoded([pa.field("t", pa.string()), pa.field("d", pa.decimal128(4, 1))], {"t": 1.5})
    assert rows == [{"t": "1.5", "d": None}]


@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        (pa.int32(), 1 << 31, "2147483648 is outside"),
        (pa.int64(), 1.0, "1.0 is no whole number"),
        (pa.int64(), True, "True is no whole number"),
        (pa.float64(), "1", "'1' is no number"),
        (pa.bool_(), 1, "1 is neither true nor false"),
        (pa.decimal128(4, 2), 100, "100 has more digits than decimal128"),
        (pa.decimal128(4, 2), "x", "'x' is no decimal128"),
        (pa.date32(), "15.11.2026", "Invalid isoformat"),
        (pa.date32(), 5, "5 is no date"),
        (TIMESTAMP, "yesterday", "Invalid isoformat"),
        (TIMESTAMP, 1e30, "is no time"),
        (TIMESTAMP, [], "[] is no time"),
        (pa.timestamp("us"), "2026-11-15T12:00:00Z", "is no time without a zone"),
        (pa.binary(), "%", "is no base64"),
        (pa.list_(pa.int64()), {}, "{} is no array"),
        (pa.list_(pa.int64()), ["x"], "'x' is no whole number"),
        (pa.struct([("a", pa.int64())]), {"a": "x"}, "x: a: 'x' is no whole number"),
        (pa.struct([("a", pa.int64())]), 5, "5 is no object"),
        (pa.map_(pa.string(), pa.int64()), 5, "5 is no object"),
    ],
)
def test_what_does_not_fit_is_refused(kind: pa.DataType, value: object, complaint: str) -> None:
    assert complaint in refused(kind, value)


def test_a_type_that_json_has_no_form_for_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"the field 'a\.b' is map<int64, string>"):
        JsonBodies([pa.field("a", pa.struct([("b", pa.map_(pa.int64(), pa.string()))]))])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = st.recursive(
    st.sampled_from(
        [
            pa.string(),
            pa.int32(),
            pa.int64(),
            pa.float64(),
            pa.bool_(),
            pa.decimal128(10, 2),
            pa.date32(),
            TIMESTAMP,
            pa.binary(),
        ]
    ),
    lambda inner: (
        st.builds(pa.list_, inner)
        | st.builds(lambda kind: pa.map_(pa.string(), kind), inner)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, min_size=1).map(
            lambda kinds: pa.struct(list(kinds.items()))
        )
    ),
    max_leaves=4,
)


@QUICK
@given(KINDS, st.lists(JSON, max_size=5))
def test_any_values_of_any_type_are_values_or_errors(
    kind: pa.DataType, values: list[object]
) -> None:
    rows, errors = decoded([pa.field("x", kind)], *({"x": value} for value in values))
    assert len(rows) == len(values)
    for row, found in enumerate(rows):
        assert found["x"] is None or row not in errors


@QUICK
@given(KINDS, st.lists(JSON, max_size=5))
def test_the_strict_way_gives_what_the_lenient_way_gives(
    kind: pa.DataType, values: list[object]
) -> None:
    fields = [pa.field("x", kind), pa.field("spoiler", pa.string())]
    alone = [decoded(fields, {"x": value}) for value in values]
    for value, (rows, errors) in zip(values, alone, strict=True):
        # A number where a text is expected sends the whole body the lenient way.
        lenient, lenient_errors = decoded(fields, {"x": value, "spoiler": 1})
        assert lenient[0]["x"] == rows[0]["x"]
        assert lenient_errors.keys() == errors.keys()


def test_a_schema_is_inferred_from_objects() -> None:
    sample = [
        b'{"id": 1, "price": 2, "tags": [], "item": {"sku": "a"}, "none": null, "mixed": 1}',
        b"not json",
        b'{"price": 2.5, "tags": ["x"], "item": {"count": 3}, "mixed": "x", "late": true}',
        b"[1]",
        b'{"empty": {}, "huge": 99999999999999999999, "lists": [[1], [2.5]]}',
    ]
    assert infer_schema(sample).simpleString() == (
        "struct<id:bigint,price:double,tags:array<string>,item:struct<sku:string,count:bigint>,"
        "none:string,mixed:string,late:boolean,empty:string,huge:decimal(38,0),lists:array<array<double>>>"
    )


@QUICK
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), JSON, min_size=1), min_size=1))
def test_a_sample_can_be_read_with_the_schema_that_it_gave(sample: list[dict[str, object]]) -> None:
    bodies = [json.dumps(each).encode() for each in sample]
    schema = infer_schema(bodies)
    rows, errors = decoded(list(to_arrow(schema)), *bodies)
    assert errors == {}
    for row, value in zip(rows, sample, strict=True):
        assert {name for name, each in row.items() if each is not None} == {
            name for name, each in value.items() if each is not None
        }


@pytest.mark.parametrize("sample", [[], [b"[]"], [b"{}"], [b"x", b"1"]])
def test_no_objects_give_no_schema(sample: list[bytes]) -> None:
    with pytest.raises(ConfigError, match="no schema can be inferred"):
        infer_schema(sample)
