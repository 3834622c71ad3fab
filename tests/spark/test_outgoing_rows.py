"""Rows of Spark as messages."""

from typing import NamedTuple

import pyarrow as pa
import pytest

from onelog.client.lanes import Channel, Lane, Place
from onelog.client.message import Queue
from onelog.errors import MessageError
from onelog.message import decode_properties, java_hash
from onelog.spark.outgoing_rows import Parts, QueueChoice, RowEncoder, check_columns
from onelog.wire.remoting.send import split_batch
from onelog.wire.remoting.send_request import SendTemplate

QUEUES = [Queue("orders", broker, number) for broker in ("a", "b") for number in range(2)]


class Row(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encoded(
    default: str | None = "orders", /, **columns: pa.Array
) -> list[tuple[str, object, Row]]:
    batch = pa.record_batch(columns)
    rows = RowEncoder(default, 1_000).rows(batch)
    return [(name, target, Row(*split_batch(message)[0])) for name, target, message in rows]


def test_bodies_may_be_bytes_or_text_under_either_name() -> None:
    for column in ({"body": pa.array([b"x"])}, {"value": pa.array(["x"])}):
        ((topic, target, message),) = encoded(**column)
        assert (topic, target, message.body, message.flag) == ("orders", None, b"x", 0)
        properties = decode_properties(message.properties)
        assert set(properties) == {"UNIQ_KEY", "WAIT"}


def test_every_row_has_a_unique_id_of_its_own() -> None:
    rows = encoded(body=pa.array([b"x"] * 100))
    assert len({decode_properties(row[2].properties)["UNIQ_KEY"] for row in rows}) == 100


def test_keys_tags_properties_and_flag_reach_the_message() -> None:
    ((_, target, message),) = encoded(
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
    assert (target, message.flag) == ("42", 7)
    assert (properties["KEYS"], properties["TAGS"], properties["a"]) == ("42 43", "paid", "1")
    assert "b" not in properties
    assert properties["UNIQ_KEY"] != "old"


def test_a_topic_column_goes_before_the_option() -> None:
    rows = encoded(body=pa.array([b"x", b"y"]), topic=pa.array(["other", None]))
    assert [row[0] for row in rows] == ["other", "orders"]


def test_what_decides_the_queue_is_the_queue_then_the_key_then_nothing() -> None:
    rows = encoded(
        body=pa.array([b"x"] * 4),
        key=pa.array(["k", "k", None, "k"]),
        queue=pa.array([3, None, None, 1], pa.int32()),
        broker=pa.array([None, None, None, "b"]),
    )
    assert [row[1] for row in rows] == [3, "k", None, ("b", 1)]


@pytest.mark.parametrize(
    ("columns", "topic", "reason"),
    [
        ({"body": pa.array([b"x"])}, None, "option `topic`"),
        ({"body": pa.array([None], pa.binary())}, "orders", "no body"),
        ({"body": pa.array([b""])}, "orders", "no body"),
        ({"body": pa.array([b"x" * 1_001])}, "orders", "limit is 1000"),
        ({"body": pa.array([b"x"]), "tags": pa.array(["a\x02b"])}, "orders", "0x01"),
        ({"body": pa.array([b"x"]), "key": pa.array(["k" * 40_000])}, "orders", "32767"),
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


def test_one_key_stays_in_one_queue_which_is_the_one_that_producers_choose() -> None:
    queues = [Queue("orders", "a", number) for number in range(5)]
    template = SendTemplate("group", "orders", 0, "a", default_topic="TBW102", default_queues=4)
    lane = Lane([Place(each, Channel("a", None), template) for each in queues], 0)
    choice = QueueChoice(queues, 0)
    keys = [f"key-{number}" for number in range(200)]
    assert any(java_hash(key) < 0 for key in keys)
    assert [choice.of(key) for key in keys] == [lane.of_key(key).queue for key in keys]


def test_rows_that_may_go_anywhere_take_turns_part_by_part() -> None:
    choice = QueueChoice(QUEUES, 1)
    assert [choice.of(None), choice.next(), choice.of(None), choice.next()] == [
        QUEUES[1], QUEUES[2], QUEUES[2], QUEUES[3],
    ]  # fmt: skip


def test_named_queues_are_counted_through_all_brokers_or_within_one() -> None:
    choice = QueueChoice(QUEUES, 0)
    assert choice.of(2) == choice.of(("b", 0)) == QUEUES[2]
    for wrong in (4, -1, ("b", 2), ("c", 0)):
        with pytest.raises(MessageError, match="drop the column `queue`"):
            choice.of(wrong)


def test_parts_are_cut_by_size_and_keep_the_order_of_each_queue() -> None:
    parts = Parts(10)
    taken = [
        (queue, part)
        for number in range(7)
        if (part := parts.add(queue := QUEUES[number % 2], b"%04d" % number)) is not None
    ]
    assert taken == [(QUEUES[0], b"000000020004"), (QUEUES[1], b"000100030005")]
    assert list(parts.rest()) == [(QUEUES[0], b"0006")]
    assert list(parts.rest()) == []
