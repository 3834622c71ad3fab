"""Unique ids, many at once."""

import itertools
import time

from onelog.client.producer.unique_id import unique_id
from onelog.spark.write.rows import IDS_PER_MS, MessageIds


def texts(ids: MessageIds, count: int) -> list[str]:
    return [row.tobytes().decode() for row in ids.take(count)]


def test_ids_look_like_those_that_are_drawn_one_by_one() -> None:
    now_ms = time.time_ns() // 1_000_000
    found = texts(MessageIds(lambda: now_ms), 3)
    alone = unique_id(now_ms)
    for number, each in enumerate(found):
        assert (each[:12], each[20:28], each[28:]) == (alone[:12], alone[20:28], f"{number:04X}")
        assert each[12:20] == found[0][12:20] != alone[12:20]


def test_no_id_is_given_twice_however_many_are_taken_at_once() -> None:
    clock = itertools.count(time.time_ns() // 1_000_000)
    ids = MessageIds(lambda: next(clock))
    found = texts(ids, 10) + texts(ids, IDS_PER_MS + 10) + texts(ids, 10)
    assert len(set(found)) == len(found)


def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    times = iter([10_000_000_000_000, 9_000_000_000_000, 9_000_000_000_000])
    ids = MessageIds(lambda: next(times))
    found = texts(ids, 5) + texts(ids, 5) + texts(ids, 5)
    assert len(set(found)) == 15


def test_two_tasks_have_different_ids() -> None:
    now_ms = time.time_ns() // 1_000_000
    one, other = MessageIds(lambda: now_ms), MessageIds(lambda: now_ms)
    assert not set(texts(one, 10)) & set(texts(other, 10))
