"""Batches of other forms on their way into the log: marked topics, numbers kept some at a time."""

import contextlib
import itertools
import struct
from pathlib import Path
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.transactions import producers
from onelog.core.transactions.in_place import UNNUMBERED, Stamp
from onelog.errors import InvalidQueueError, OnelogError, TopicNotFoundError
from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from tests.core.replicas import Master
from tests.core.world import World


def put(world: World, queue_id: int = 0, number: int | None = None, topic: str = "orders") -> Any:
    """Store a batch of one message: where it is, or what was wrong."""
    (found,) = begin(world, queue_id, number, topic)
    return found


def begin(
    world: World, queue_id: int, number: int | None, topic: str = "orders", *, ends: bool = True
) -> list[Any]:
    """Have a batch of one message stored; what is told of it is added to what this returns."""
    body = bytearray(kafka.from_neutral([Neutral(None, b"x")]))
    if number is not None:
        struct.pack_into(">qhi", body, 43, 7, 0, number)
    batch = kafka.with_crc(bytes(body))
    message = NewMessage(topic, queue_id, batch, sys_flag=Form.KAFKA.sys_flag)
    stamp = None if number is None else Stamp(7, 0, number, 1)
    found: list[Any] = []

    def stored(token: Any, appended: Any, error: OnelogError | None) -> None:
        found.append(error or appended.queue_offset)

    world.broker.publish.send(SELF, message, stored, stamp=stamp or UNNUMBERED)
    if ends:
        world.end_tick()
    return found


def test_a_batch_marks_its_topic_and_what_is_refused_marks_nothing(world: World) -> None:
    world.topic("orders", 1)
    with pytest.raises(TopicNotFoundError):
        put(world, topic="nowhere")
    with pytest.raises(InvalidQueueError):
        put(world, queue_id=5)
    assert world.core.marked.names == set()
    assert put(world) == 0
    assert world.core.marked.names == {"orders"}


def test_many_queues_are_kept_some_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_QUEUES_AT_ONCE", 3)
    world.topic("orders", 7)
    for queue_id in range(7):
        assert put(world, queue_id, 0) == 0
    batch_producers = world.core.batch_producers
    assert [batch_producers.keep() for _ in range(3)] == [True, True, False]
    assert not batch_producers.keep()
    world.crash()
    for queue_id in range(7):
        assert put(world, queue_id, 0) == 0, "it repeats the one before the crash"
        assert put(world, queue_id, 1) == 1


def test_ids_are_given_once_also_after_a_crash(world: World) -> None:
    given = [world.broker.publish.new_producer_id(SELF) for _ in range(3)]
    world.crash()
    given += [world.broker.publish.new_producer_id(SELF) for _ in range(3)]
    assert len(set(given)) == 6
    assert given == sorted(given)


def test_a_topic_that_is_made_again_knows_no_producers(world: World) -> None:
    world.topic("orders", 1)
    put(world, 0, 0)
    world.core.batch_producers.keep()
    world.broker.topics.delete(SELF, "orders")
    world.topic("orders", 1)
    assert put(world, 0, 0) == 0
    assert put(world, 0, 1) == 1
    world.crash()
    (known,) = world.broker.transactions.producers_of(SELF, "orders", 0)
    assert known[0] == 7
    assert put(world, 0, 2) == 2


def test_after_a_loss_of_power_numbers_are_those_of_the_batches_that_are_left(
    world: World,
) -> None:
    world.topic("orders", 1)
    put(world, 0, 0)
    assert world.store.wait_flushed(world.store.log_end)
    for number in (1, 2):
        put(world, 0, number)
    world.power_loss()
    end = world.store.max_offset("orders", 0)
    assert put(world, 0, end) == end, "the next after what the disk has"


def test_numbers_are_kept_though_some_batch_always_waits_to_be_safe(tmp_path: Path) -> None:
    with contextlib.closing(Master.at(tmp_path)) as master:
        master.topic("orders", 1)
        for number in range(3):
            begin(master, 0, number)
            master.core.batch_producers.keep()
        (part,) = [each for each in master.core.batch_producers.parts() if "orders@0" in each]
        assert part["orders@0"]["covered"] == 3
        # What is sent again meanwhile is answered with the others, not stored twice.
        again = begin(master, 0, 2)
        assert again == []
        master.confirm()
        assert again == [2]
        assert master.store.next_offset("orders", 0) == 3


def test_numbers_are_kept_though_some_batch_is_always_taken_and_not_written(world: World) -> None:
    world.topic("orders", 1)
    world.end_tick()
    answers = []
    for number in range(3):
        answers.append(begin(world, 0, number, ends=False))
        world.core.batch_producers.keep()
    assert [*itertools.chain(*answers)] == [0, 1, 2]
    (part,) = [each for each in world.core.batch_producers.parts() if "orders@0" in each]
    assert part["orders@0"]["covered"] == 3
