"""Records as they are stored, and the messages in them that are handed out."""

from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.queues.sharing import ShareLimits
from onelog.core.transactions.in_place import Stamp
from onelog.errors import StoreFailedError
from onelog.message import NewMessage
from tests.core.sharing import TOPIC, Sharer, put_batch, sharing
from tests.core.world import World

COMMITTED = ShareLimits(committed=True, from_start=True)


class Payer:
    """A transactional producer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.id, self.epoch = world.broker.transactions.in_place.begin(SELF, "payer", 60_000)
        self.number = 0

    def send(self, count: int) -> None:
        in_place = self.world.broker.transactions.in_place
        in_place.add_queues(SELF, "payer", self.id, self.epoch, [(TOPIC, 0)])
        put_batch(self.world, count, stamp=Stamp(self.id, self.epoch, self.number, count, True))
        self.number += count

    def end(self, commit: bool) -> None:
        in_place = self.world.broker.transactions.in_place
        in_place.end(SELF, "payer", self.id, self.epoch, commit, lambda producer, error: None)
        self.world.end_tick()


def sizes(leased: Any) -> list[int]:
    return [len(record) for part in leased for each in part.parts for record in each.records]


def test_a_batch_is_divided_or_goes_to_its_end(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 10)
    put_batch(world, 10)
    assert list(ann.take(3)) == [0, 1, 2]
    assert list(ann.take(3, whole=True)) == list(range(3, 10))
    assert list(ann.take(12, whole=True)) == list(range(10, 20))


def test_a_batch_leaves_once_with_what_came_back_and_what_is_unread(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 6)
    put_batch(world, 2)
    ann.take(4)
    ann.give_back(1, 3)
    assert ann.take() == {1: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}


def test_messages_of_rocketmq_are_shared_too(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 2)
    for _ in range(3):
        world.publish(NewMessage(TOPIC, 0, b"plain"))
    put_batch(world, 2)
    assert list(ann.take(4)) == [0, 1, 2, 3]
    ann.give_back(0, 3)
    assert ann.take() == {0: 2, 3: 2, 4: 1, 5: 1, 6: 1}


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_transaction_is_no_message(world: World, commit: bool) -> None:
    ann = sharing(world)
    payer = Payer(world)
    payer.send(2)
    assert list(ann.take()) == [0, 1], "it does not wait"
    payer.end(commit)
    put_batch(world, 1)
    assert list(ann.take()) == [3]
    ann.accept(0, 1, 3)
    assert ann.position == 4


@pytest.mark.parametrize("commit", [True, False])
def test_who_wants_what_is_committed_waits_for_the_end(world: World, commit: bool) -> None:
    ann = sharing(world)
    ann.terms = COMMITTED
    put_batch(world, 1)
    payer = Payer(world)
    payer.send(2)
    put_batch(world, 1)
    assert list(ann.take()) == [0]
    held = ann.ask(wait_ms=60_000)
    world.end_tick()
    assert held == []
    payer.end(commit)
    world.end_tick()
    (part,) = held[0].parts
    assert list(part.offsets) == ([1, 2, 3] if commit else [3])
    ann.accept(0, *part.offsets)
    assert ann.take() == {}
    assert ann.position == 5, "also what was aborted and the marker are behind it"


def test_the_first_record_is_taken_in_any_case_and_more_while_there_is_room(world: World) -> None:
    ann = sharing(world)
    for _ in range(4):
        put_batch(world, 2)
    assert list(ann.take(bytes_max=1)) == [0, 1]
    held = ann.ask(1)
    world.end_tick()
    two = 2 * sizes(held)[0]
    assert list(ann.take(bytes_max=two)) == [3, 4, 5]
    ann.give_back(0, 3, 5)
    assert list(ann.take(bytes_max=two)) == [0, 3]
    assert list(ann.take(bytes_max=1)) == [5]
    assert list(ann.take()) == [6, 7]


def test_what_was_deleted_is_passed_over(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 4)
    put_batch(world, 2)
    ann.take(2)
    ann.give_back(0)
    world.broker.topics.delete_before(SELF, TOPIC, 0, 5)
    assert list(ann.take()) == [5]
    with pytest.raises(Exception, match="does not have"):
        ann.accept(0)


def test_cold_records_are_read_by_a_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = sharing(world)
    put_batch(world, 2)
    put_batch(world, 2)
    ann.take(2)
    ann.give_back(1)
    world.restart()
    monkeypatch.setattr(world.store.log, "is_warm", lambda at, size: False)
    world.advance(200)
    world.end_tick()
    for wanted in ([0], [1], [2, 3]):
        held = ann.ask(len(wanted), whole=True)
        world.run_posted(world.posted.qsize())
        world.end_tick()
        assert [list(part.offsets) for each in held for part in each.parts] == [wanted]


def test_what_the_disk_cannot_read_stays_and_the_rest_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = sharing(world)
    put_batch(world, 1)
    put_batch(world, 1)
    ann.take()
    ann.give_back(0, 1)
    bad = world.store.entry_at(TOPIC, 0, 0)
    assert bad is not None
    read = world.store.read_record

    def failing(at: int, size: int) -> memoryview:
        if at == bad[0]:
            raise StoreFailedError("it cannot be read")
        return read(at, size)

    monkeypatch.setattr(world.store, "read_record", failing)
    assert list(ann.take()) == [1]
    with pytest.raises(StoreFailedError):
        ann.take()
    monkeypatch.undo()
    assert list(ann.take()) == [0]


def test_a_queue_that_became_shorter_is_followed(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 3)
    assert len(Sharer(world).take()) == 3
    world.broker.topics.delete(SELF, TOPIC)
    world.topic(TOPIC, 1)
    put_batch(world, 1)
    assert list(ann.take()) == [0]
