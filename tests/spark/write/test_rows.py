"""Rows of Spark as messages."""

from typing import NamedTuple

import pyarrow as pa
import pytest

from onelog.errors import MessageError
from onelog.message import decode_properties
from onelog.record.forms import rocketmq
from onelog.record.forms.neutral import Neutral
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
    )
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
        {"KEYS": "k"},
        {"TAGS": "t", "x": "1"},
        {},
        {"KEYS": "lll", "TAGS": "uu", "x": "22", "yy": "3"},
    ]
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
        ("k3", "3"),
        ("k4", None),
        ("k5", "5"),
        ("k6", None),
    ]


def test_numbers_become_text_in_keys_tags_and_properties() -> None:
    ((_, message),) = encoded(
        body=pa.array([b"x"]),
        key=pa.array([7]),
        tags=pa.array([8]),
        properties=pa.array([[("n", 9)]], pa.map_(pa.string(), pa.int64())),
    )
    own = decode_properties(message.properties)
    assert (own["KEYS"], own["TAGS"], own["n"]) == ("7", "8", "9")


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def neutral_of(message: Row) -> Neutral:
    """What Kafka's consumers get, without the id."""
    found = rocketmq.to_neutral(message.body, message.properties, 0)
    own = tuple(each for each in found.headers if each[0] != "UNIQ_KEY")
    return found._replace(headers=own)


def test_bodies_that_are_none_or_empty_are_kept_apart() -> None:
    rows = encoded(body=pa.array([None, b"", b"x"]))
    assert [neutral_of(message).body for _, message in rows] == [None, b"", b"x"]
    rows = encoded(value=pa.array([None, ""]))
    assert [neutral_of(message).body for _, message in rows] == [None, b""]


def test_keys_are_bytes_or_text_and_whole() -> None:
    keys = [b"a b", b"\xff\0", b"", None, b"x\x01y", "größe".encode()]
    rows = encoded(body=pa.array([b"x"] * len(keys)), key=pa.array(keys))
    assert [neutral_of(message).key for _, message in rows] == keys
    # As the source gives them: text where it is one, and bytes.
    texts = ["a b", None, "", None, "x\x01y", "größe"]
    both = encoded(
        body=pa.array([b"x"] * len(keys)),
        key=pa.array(texts),
        key_bytes=pa.array(keys),
        properties=pa.array(
            [[("__key", "=AA=="), ("__body", "null")]] * len(keys),
            pa.map_(pa.string(), pa.string()),
        ),
    )
    assert [neutral_of(message).key for _, message in both] == keys
    # Who changes the text means that.
    ((_, changed),) = encoded(
        body=pa.array([b"x"]), key=pa.array(["new"]), key_bytes=pa.array([b"old"])
    )
    assert neutral_of(changed).key == b"new"


def test_headers_keep_their_order_repeats_and_bytes() -> None:
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [("a", b"1"), ("a", b"2"), ("", b"x"), ("b", None), ("b", b""), ("größe", b"\xff")],
        [("KEYS", b"k"), ("__key", b"=AA=="), ("DELAY", b"3"), ("c", b"\x01")],
        [],
        None,
    ]
    given = [
        None if row is None else [{"key": name, "value": value} for name, value in row]
        for row in headers
    ]
    properties = [("a", "other"), ("mine", "kept"), ("__header.3.b", "null")]
    maps = pa.array([properties[1:2], [], None, properties], pa.map_(pa.string(), pa.string()))
    rows = encoded(
        body=pa.array([b"x"] * 4),
        headers=pa.array(given, HEADERS),
        tags=pa.array([None, "t", None, None]),
        properties=maps,
    )
    found = [neutral_of(message) for _, message in rows]
    assert found[0].headers == (*(headers[0] or ()), ("mine", b"kept"))
    # What is reserved for the system has no effect as a header, and is one.
    assert [each for each in found[1].headers if each[0] != "TAGS"] == headers[1]
    assert decode_properties(rows[1][1].properties)["TAGS"] == "t"
    assert found[2].headers == ()
    assert found[3].headers == (("a", b"other"), ("mine", b"kept"), ("b", None))


def test_a_header_that_is_a_property_as_well_is_written_once() -> None:
    ((_, message),) = encoded(
        body=pa.array([b"x"]),
        tags=pa.array(["t"]),
        headers=pa.array([[{"key": "a", "value": b"1"}, {"key": "TAGS", "value": b"t"}]], HEADERS),
        properties=pa.array([[("a", "1"), ("TAGS", "t")]], pa.map_(pa.string(), pa.string())),
    )
    assert neutral_of(message).headers == (("TAGS", b"t"), ("a", b"1"))


@pytest.mark.parametrize(
    ("columns", "topic", "reason"),
    [
        ({"body": pa.array([b"x"])}, None, "option `topic`"),
        ({"body": pa.array([b"x" * 1_001])}, "orders", "limit is 1000"),
        # With its properties it fits into no request.
        ({"body": pa.array([b"x" * 950])}, "orders", "body of 950 bytes, and 10.. with"),
        ({"body": pa.array([b"x"]), "headers": pa.array(["a=b"])}, "orders", "array of structs"),
        (
            {"body": pa.array([b"x"]), "headers": pa.array([[{"key": None, "value": b"v"}]])},
            "orders",
            "needs a key",
        ),
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
