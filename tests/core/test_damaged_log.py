"""A log with damaged records in it, after the queues were made anew: the broker goes on without."""

import shutil

import pytest

from onelog.core.catalog.groups import GroupConfig
from onelog.names import HALF_TOPIC, SCHEDULE_TOPIC, TABLES_TOPIC, TIMER_TOPIC
from tests.core.leasing import GROUP, LEASE_MS, Reader, bodies
from tests.core.transacting import Producers
from tests.core.world import World, pulled
from tests.store.samples import flip

BODY_AT = 88


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 1)
    return world


def damage(world: World, topic: str, offset: int, queue_id: int = 0) -> None:
    """A crash, one wrong bit in the body of a message, and queues that are rebuilt."""
    place = world.store.entry_at(topic, queue_id, offset)
    assert place is not None
    copy = world.folder.with_name("damaged")
    shutil.copytree(world.folder, copy)
    world.close()
    world.folder = copy
    flip(copy / "commitlog" / f"{0:020d}", place[0] + BODY_AT)
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index", ignore_errors=True)
    world.start()
    assert world.store.entry_at(topic, queue_id, offset) is None
    assert [each.start for each in world.store.damage] == [place[0]]


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_a_damaged_delayed_message_is_left_out_and_the_others_come(
    orders: World, lost: int
) -> None:
    for number in range(5):
        orders.send("orders", 0, b"%d" % number, DELAY="1")
    damage(orders, SCHEDULE_TOPIC, lost)
    orders.advance(5_000)
    assert orders.bodies("orders") == [b"%d" % n for n in range(5) if n != lost]


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_a_damaged_timed_message_is_left_out_and_the_others_come(orders: World, lost: int) -> None:
    for number in range(5):
        orders.send("orders", 0, b"%d" % number, TIMER_DELAY_MS="1000")
    damage(orders, TIMER_TOPIC, lost)
    orders.advance(5_000)
    assert orders.bodies("orders") == [b"%d" % n for n in range(5) if n != lost]


def test_a_damaged_half_message_is_a_lost_transaction_and_the_others_are_asked_about(
    orders: World,
) -> None:
    producers = Producers(orders)
    for number in range(3):
        producers.begin(b"%d" % number)
    damage(orders, HALF_TOPIC, 1)
    producers.connect()
    producers.join()
    producers.advance(120_000)
    assert {check.half_offset for _, check in producers.take_asked()} == {0, 2}


def test_a_damaged_table_record_costs_what_it_said(orders: World) -> None:
    orders.topic("lost", 1)
    end = int(orders.store.max_offset(TABLES_TOPIC, 0))
    orders.topic("kept", 1)
    damage(orders, TABLES_TOPIC, end - 1)
    assert {"orders", "kept"} <= {config.name for config in orders.core.topics.all()}
    assert orders.core.topics.get("lost") is None


def test_a_lease_of_a_message_that_damage_took_ends(orders: World) -> None:
    orders.core.groups.put(GroupConfig(GROUP))
    reader = Reader(orders)
    for number in range(3):
        orders.send("orders", 0, b"%d" % number)
    assert bodies(reader.pop()) == [b"0", b"1", b"2"]
    damage(orders, "orders", 1)
    orders.advance(LEASE_MS + 1_000)
    orders.end_tick()
    again = reader.pop()
    assert sorted(bodies(again)) == [b"0", b"2"]
    reader.ack(*again)
    assert reader.cursor() == 3


def test_consumers_go_over_what_damage_took(orders: World) -> None:
    for number in range(6):
        orders.send("orders", 0, b"%d" % number)
    damage(orders, "orders", 3)
    got: list[bytes] = []
    offset = 0
    while offset < 6:
        found = orders.pull(offset)
        assert found.next_offset > offset
        got += pulled(found)
        offset = found.next_offset
    assert got == [b"0", b"1", b"2", b"4", b"5"]
