"""Which queue a row of Spark goes to, and in which parts."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.message import Queue
from onelog.client.producer.send_targets import Channel, SendTarget, SendTargets
from onelog.errors import MessageError
from onelog.message import java_hash
from onelog.spark.write.queues import ANYWHERE, Parts, QueueChoice, java_hashes
from onelog.wire.remoting.send import SendTemplate
from tests.spark.record_samples import QUICK

QUEUES = [Queue("orders", broker, number) for broker in ("a", "b") for number in range(2)]


def rows(count: int, **columns: pa.Array) -> pa.RecordBatch:
    messages = pa.array([b"%04d" % number for number in range(count)])
    return pa.record_batch({"message": messages, **columns})


def numbers(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def test_what_decides_the_queue_is_the_queue_then_the_key_then_nothing() -> None:
    choice = QueueChoice(QUEUES, 0)
    named = rows(
        5,
        key=pa.array(["k", "k", None, "k", None]),
        queue=numbers(3, None, None, 1, None),
        broker=pa.array([None, None, None, "b", "b"]),
    )
    of_key = abs(java_hash("k")) % 4
    assert choice.queue_ids(named).tolist() == [3, of_key, ANYWHERE, 3, ANYWHERE]
    assert choice.queue_ids(rows(2)).tolist() == [ANYWHERE, ANYWHERE]


@QUICK
@given(st.lists(st.none() | st.text(max_size=70) | st.text("abcXYZ0189-", max_size=70)))
def test_keys_are_hashed_as_in_java(keys: list[str | None]) -> None:
    hashed = java_hashes(pa.array(keys, pa.string())).tolist()
    assert [hashed[at] for at, key in enumerate(keys) if key is not None] == [
        java_hash(key) for key in keys if key is not None
    ]


def test_one_key_stays_in_one_queue_which_is_the_one_that_producers_choose() -> None:
    queues = [Queue("orders", "a", number) for number in range(5)]
    template = SendTemplate("group", "orders", 0, "a", default_topic="TBW102", default_queues=4)
    targets = SendTargets([SendTarget(each, Channel("a", None), template) for each in queues], 0)
    keys = [f"key-{number}" for number in range(200)]
    assert any(java_hash(key) < 0 for key in keys)
    places = QueueChoice(queues, 0).queue_ids(rows(200, key=pa.array(keys)))
    assert [queues[place] for place in places] == [targets.of_key(key).queue for key in keys]


def test_the_messages_of_a_queue_are_shared_out_in_order() -> None:
    choice = QueueChoice(QUEUES, 0)
    shares = choice.shares(rows(6, queue=numbers(2, None, 0, 2, None, 2)))
    assert {queue: messages.to_pylist() for queue, messages in shares} == {
        QUEUES[2]: [b"0000", b"0003", b"0005"],
        QUEUES[0]: [b"0002"],
        None: [b"0001", b"0004"],
    }


def test_rows_that_may_go_anywhere_take_turns_part_by_part() -> None:
    choice = QueueChoice(QUEUES, 1)
    assert [choice.current, choice.next(), choice.current, choice.next()] == [
        QUEUES[1],
        QUEUES[2],
        QUEUES[2],
        QUEUES[3],
    ]


def test_named_queues_are_counted_through_all_brokers_or_within_one() -> None:
    choice = QueueChoice(QUEUES, 0)
    assert choice.queue_ids(rows(1, queue=numbers(2))).tolist() == [2]
    in_b = rows(2, queue=numbers(0, 1), broker=pa.array(["b", "a"]))
    assert choice.queue_ids(in_b).tolist() == [2, 1]
    for number, broker in ((4, None), (-1, None), (2, "b"), (0, "c")):
        wrong = rows(2, queue=numbers(0, number), broker=pa.array([None, broker], pa.string()))
        with pytest.raises(MessageError, match=f"wants queue .*{number}.* drop the column `queue`"):
            choice.queue_ids(wrong)


def test_parts_are_cut_by_size_and_keep_the_order_of_each_queue() -> None:
    parts = Parts(10)
    taken = []
    for queue, first in ((QUEUES[0], 0), (QUEUES[1], 1)):
        messages = pa.array([b"%04d" % number for number in range(first, 9, 2)])
        while len(messages):
            messages, part = parts.add(queue, messages)
            taken += [(queue, part)] if part is not None else []
    assert taken == [(QUEUES[0], b"000000020004"), (QUEUES[1], b"000100030005")]
    messages, part = parts.add(QUEUES[1], pa.array([b"0009", b"0011"]))
    assert (messages.to_pylist(), part) == ([], b"000700090011")
    assert list(parts.rest()) == [(QUEUES[0], b"00060008")]
    assert list(parts.rest()) == []


def test_parts_are_cut_by_count_because_many_small_messages_take_a_broker_long() -> None:
    parts = Parts(1_000, 3)
    messages, part = parts.add(QUEUES[0], pa.array([b"a"]))
    assert (len(messages), part) == (0, None)
    messages, part = parts.add(QUEUES[0], pa.array([b"b", b"c", b"d", b"e"]))
    assert (messages.to_pylist(), part) == ([b"d", b"e"], b"abc")
    messages, part = parts.add(QUEUES[0], messages)
    assert (len(messages), part) == (0, None)
    assert list(parts.rest()) == [(QUEUES[0], b"de")]


def test_a_part_is_over_the_limit_only_if_it_is_one_message() -> None:
    sizes = [10, 40, 90, 5, 120, 30, 30]
    messages = pa.array([b"x" * size for size in sizes], pa.binary())
    parts = Parts(60, bytes_max=100)
    found: list[int] = []
    while len(messages):
        messages, part = parts.add(QUEUES[0], messages)
        found += [] if part is None else [len(part)]
    found += [len(part) for _, part in parts.rest()]
    assert found == [50, 90, 5, 120, 60]
    assert sum(found) == sum(sizes)
