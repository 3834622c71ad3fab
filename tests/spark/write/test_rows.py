"""Rows of Spark as messages."""

from typing import NamedTuple

import pyarrow as pa
import pytest

from onelog.errors import MessageError
from onelog.message import decode_properties
from onelog.record.inner_batch import split_batch
from onelog.spark.write.rows import RowEncoder, check_columns


class Row(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encoded(default: str | None = "orders", /, **columns: pa.Array) -> list[tuple[str, Row]]:
    batch = pa.record_batch(columns)
    return [
        (topic, Row(*split_batch(message)[0]))
        for topic, rows in RowEncoder(default, 1_000).rows(batch)
        for message in rows.column("message").to_pylist()
    ]


def test_bodies_may_be_bytes_or_text_under_either_name() -> None:
    for column in ({"body": pa.array([b"x"])}, {"value": pa.array(["x"])}):
        ((topic, message),) = encoded(**column)
        assert (topic, message.body, message.flag) == ("orders", b"x", 0)
        properties = decode_properties(message.properties)
        assert set(properties) == {"UNIQ_KEY", "WAIT"}


def test_every_row_has_a_unique_id_of_its_own() -> None:
    rows = encoded(body=pa.array([b"x"] * 100))
    assert len({decode_properties(row[1].properties)["UNIQ_KEY"] for row in rows}) == 100


def test_keys_tags_properties_and_flag_reach_the_message() -> None:
    ((_, message),) = encoded(
        body=pa.array([b"x"]),
        key=pa.array([b"42"]),
        keys=pa.array([["42", "43"]]),
        tags=pa.array(["paid"]),
        properties=pa.array(
            [[("a", "1"), ("b", None), ("UNIQ_KEY", "old")]], pa.map_(pa.string(), pa.string())
        ),
        flag=pa.array([7], pa.int32()),
    )  # fmt: skip
    properties = decode_properties(message.properties)
    assert message.flag == 7
    assert (properties["KEYS"], properties["TAGS"], properties["a"]) == ("42 43", "paid", "1")
    assert "b" not in properties
    assert properties["UNIQ_KEY"] != "old"


def test_a_topic_column_goes_before_the_option() -> None:
    rows = encoded(body=pa.array([b"x", b"y"]), topic=pa.array(["other", None]))
    assert [row[0] for row in rows] == ["other", "orders"]


def test_rows_without_a_key_a_tag_or_a_property_have_none_and_others_keep_theirs() -> None:
    rows = encoded(
        body=pa.array(["a", "bb", "ccc", "dddd"]),
        key=pa.array(["k", None, "", "lll"]),
        tags=pa.array([None, "t", "", "uu"]),
        properties=pa.array(
            [None, [("x", "1"), ("yy", "")], [], [("x", "22"), ("yy", "3")]],
            pa.map_(pa.string(), pa.string()),
        ),
        flag=pa.array([None, 2, None, 4], pa.int32()),
    )
    own = [decode_properties(message.properties) for _, message in rows]
    for each in own:
        assert each.pop("WAIT") == "true"
        assert len(each.pop("UNIQ_KEY")) == 32
    assert own == [
        {"KEYS": "k"}, {"TAGS": "t", "x": "1"}, {},
        {"KEYS": "lll", "TAGS": "uu", "x": "22", "yy": "3"},
    ]  # fmt: skip
    assert [message.body for _, message in rows] == [b"a", b"bb", b"ccc", b"dddd"]
    assert [message.flag for _, message in rows] == [0, 2, 0, 4]


def test_slices_of_a_batch_are_encoded_like_batches() -> None:
    batch = pa.record_batch(
        {
            "value": pa.array([f"body {number}" for number in range(10)]),
            "key": pa.array([f"k{number}" for number in range(10)]),
            "properties": pa.array(
                [[("n", str(number))] * (number % 2) for number in range(10)],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    ).slice(3, 4)
    rows = encoded(**dict(zip(batch.schema.names, batch.columns, strict=True)))
    assert [row.body for _, row in rows] == [b"body 3", b"body 4", b"body 5", b"body 6"]
    own = [decode_properties(row.properties) for _, row in rows]
    assert [(each["KEYS"], each.get("n")) for each in own] == [
        ("k3", "3"), ("k4", None), ("k5", "5"), ("k6", None),
    ]  # fmt: skip


def test_numbers_become_text_in_keys_tags_and_properties() -> None:
    ((_, message),) = encoded(
        body=pa.array([b"x"]),
        key=pa.array([7]),
        tags=pa.array([8]),
        properties=pa.array([[("n", 9)]], pa.map_(pa.string(), pa.int64())),
    )
    own = decode_properties(message.properties)
    assert (own["KEYS"], own["TAGS"], own["n"]) == ("7", "8", "9")


@pytest.mark.parametrize(
    ("columns", "topic", "reason"),
    [
        ({"body": pa.array([b"x"])}, None, "option `topic`"),
        ({"body": pa.array([None], pa.binary())}, "orders", "no body"),
        ({"body": pa.array([b""])}, "orders", "no body"),
        ({"body": pa.array([b"x" * 1_001])}, "orders", "limit is 1000"),
        ({"body": pa.array([b"x"]), "tags": pa.array(["a\x02b"])}, "orders", "0x01"),
        ({"body": pa.array([b"x"]), "key": pa.array(["k" * 40_000])}, "orders", "32767"),
        ({"body": pa.array([1])}, "orders", "cast the column"),
        ({"body": pa.array([b"x"]), "properties": pa.array(["a=b"])}, "orders", "has to be a map"),
        (
            {
                "body": pa.array([b"x"]),
                "properties": pa.array([[("a\x01", "b")]], pa.map_(pa.string(), pa.string())),
            },
            "orders",
            "0x01",
        ),
    ],
)
def test_rows_that_no_topic_takes_are_refused_with_the_remedy(
    columns: dict[str, pa.Array], topic: str | None, reason: str
) -> None:
    with pytest.raises(MessageError, match=reason):
        encoded(topic, **columns)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["id", "amount"], "rename one to `body`"),
        (["body", "value"], "mean the same"),
        (["body", "queue", "partition"], "mean the same"),
        (["body", "amount"], "amount means nothing"),
    ],
)
def test_columns_that_mean_nothing_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        check_columns(names)


def test_columns_of_the_source_can_be_written_back() -> None:
    check_columns(
        "topic queue offset key tags body properties born_time store_time message_id flag".split()
    )
