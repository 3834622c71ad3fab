"""Protobuf messages become columns, by their descriptor set."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import ConfigError
from onelog.spark.bodies.protobuf import ProtobufBodies, spark_fields
from onelog.spark.bodies.typed_values import columns
from tests.spark.record_samples import QUICK, to_arrow
from tests.spark.shop_protobuf import descriptor_set, message_class, order

SET = descriptor_set()


def decoded(
    *bodies: bytes, message: str = "shop.Order", only: tuple[str, ...] = ()
) -> tuple[list[dict[str, object]], dict[int, str]]:
    fields = [f for f in to_arrow(spark_fields(SET, message)) if not only or f.name in only]
    arrays, errors = columns(fields, ProtobufBodies(SET, message, fields).decode(bodies))
    rows = zip(*(array.to_pylist() for array in arrays), strict=True)
    return [dict(zip([f.name for f in fields], row, strict=True)) for row in rows], errors


def test_every_type_has_a_column() -> None:
    assert spark_fields(SET, "Order").simpleString() == (
        "struct<id:bigint,ratio:double,small:int,wide:bigint,huge:decimal(20,0),ok:boolean,"
        "name:string,raw:binary,single:float,maybe:int,state:string,at:timestamp,"
        "limit:decimal(20,0),items:array<struct<sku:string,state:string>>,tags:array<string>,"
        "counts:map<decimal(20,0),struct<sku:string,state:string>>>"
    )


def test_messages_become_rows() -> None:
    message = message_class("shop.Order")(
        id=-7,
        ratio=0.5,
        small=-3,
        wide=(1 << 32) - 1,
        huge=(1 << 64) - 1,
        ok=True,
        name="größe",
        raw=b"\0\xff",
        single=1.5,
        maybe=0,
        state=1,
        tags=["a", "b"],
    )
    message.at.seconds, message.at.nanos = 1_700_000_000, 5_999
    message.limit.value = 9
    message.items.add(sku="x", state=1)
    message.items.add()
    message.counts[3].sku = "y"
    rows, errors = decoded(message.SerializeToString())
    assert errors == {}
    assert rows == [
        {
            "id": -7,
            "ratio": 0.5,
            "small": -3,
            "wide": (1 << 32) - 1,
            "huge": Decimal((1 << 64) - 1),
            "ok": True,
            "name": "größe",
            "raw": b"\0\xff",
            "single": 1.5,
            "maybe": 0,
            "state": "PAID",
            "at": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=5),
            "limit": Decimal(9),
            "items": [{"sku": "x", "state": "PAID"}, {"sku": "", "state": "NEW"}],
            "tags": ["a", "b"],
            "counts": [(Decimal(3), {"sku": "y", "state": "NEW"})],
        }
    ]


def test_a_field_that_was_not_set_is_null_if_it_can_tell() -> None:
    (row,), _ = decoded(b"")
    assert (row["maybe"], row["at"], row["limit"]) == (None, None, None)
    assert (row["id"], row["name"], row["state"], row["items"]) == (0, "", "NEW", [])


def test_a_number_that_the_enum_does_not_know_is_shown() -> None:
    (row,), _ = decoded(order(state=42))
    assert row["state"] == "42"


def test_a_time_that_no_timestamp_can_be_is_an_error() -> None:
    message = message_class("shop.Order")(id=1)
    message.at.seconds = 1 << 60
    rows, errors = decoded(order(id=5), message.SerializeToString(), only=("id", "at"))
    assert rows == [{"id": 5, "at": None}, {"id": None, "at": None}]
    assert "no timestamp can be" in errors[1]


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    assert decoded(order(id=5, name="x"), only=("name",)) == ([{"name": "x"}], {})


def test_other_bytes_are_errors_of_their_rows() -> None:
    rows, errors = decoded(order(id=1), b"\xff", order(id=2)[:-1], only=("id",))
    assert rows == [{"id": 1}, {"id": None}, {"id": None}]
    assert errors.keys() == {1, 2}
    rows, errors = decoded(b"", message="Strict")
    assert "required fields are missing: id" in errors[0]


@QUICK
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_garbage_raises_nothing(bodies: list[bytes]) -> None:
    rows, _ = decoded(*bodies)
    assert len(rows) == len(bodies)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (None, "must be given; it has google.protobuf.BoolValue"),
        ("Nothing", "is not in the descriptor set"),
        ("Tree", "shop.Tree is inside of itself"),
    ],
)
def test_a_message_that_has_no_columns_is_refused(name: str | None, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        spark_fields(SET, name)


def test_nested_messages_can_be_named() -> None:
    assert spark_fields(SET, "Order.Item").names == ["sku", "state"]


@pytest.mark.parametrize("content", [b"\xff\xff", b"syntax = 'proto3';"])
def test_what_is_no_descriptor_set_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match="no Protobuf descriptor set"):
        spark_fields(content, "Order")


def test_a_set_without_its_imports_is_refused() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(SET)
    del files.file[0]
    with pytest.raises(ConfigError, match="with all its imports"):
        spark_fields(files.SerializeToString(), "Order")
