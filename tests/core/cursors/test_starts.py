"""Queues that begin later because somebody had their first messages deleted."""

import pytest

from onelog.core.access import SELF
from onelog.errors import OffsetOutOfRangeError
from tests.core.world import World


def test_a_queue_begins_there_also_after_a_crash(world: World) -> None:
    world.topic("orders", 1)
    for _ in range(5):
        world.send()
    assert world.broker.topics.delete_before(SELF, "orders", 0, 3) == 3
    assert world.broker.topics.min_offset(SELF, "orders", 0) == 3
    world.crash()
    assert world.broker.topics.min_offset(SELF, "orders", 0) == 3
    assert world.broker.topics.delete_before(SELF, "orders", 0, -1) == 5
    assert world.send().queue_offset == 5


@pytest.mark.parametrize("offset", [2, 6, -2])
def test_it_can_begin_only_where_it_is(world: World, offset: int) -> None:
    world.topic("orders", 1)
    for _ in range(5):
        world.send()
    world.broker.topics.delete_before(SELF, "orders", 0, 3)
    with pytest.raises(OffsetOutOfRangeError):
        world.broker.topics.delete_before(SELF, "orders", 0, offset)


def test_after_a_loss_of_power_it_begins_at_its_end_at_the_latest(world: World) -> None:
    world.topic("orders", 1)
    for _ in range(5):
        world.send()
    world.broker.topics.delete_before(SELF, "orders", 0, 4)
    world.core.tables.snapshot(wait=True)
    world.power_loss()
    start, end = (
        ask(SELF, "orders", 0)
        for ask in (world.broker.topics.min_offset, world.broker.topics.max_offset)
    )
    assert start <= end
