"""A core that is opened in steps, with time between them, as a node that is elected does it."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from onelog.core.access import SELF
from onelog.core.assembly import Assembly
from onelog.core.broker import Broker
from onelog.core.durable.storage import Runtime
from onelog.core.transactions.transactional_ids import TransactionState
from onelog.rocketmq.profile import NAMING, ROCKETMQ
from tests.core.world import World, entries_of

NAMES = [f"payer{number}" for number in range(3)]
QUEUE = [("orders", 0)]
TIMEOUT_MS = 1_000


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[World]:
    """Transactions that are long over, and as many changes that have to be replayed after them."""
    world = World(tmp_path / "store")
    world.topic("orders", 1)
    in_place = world.broker.transactions.in_place
    for name in NAMES:
        for _ in range(3):
            id_, epoch = in_place.begin(SELF, name, TIMEOUT_MS)
            in_place.add_queues(SELF, name, id_, epoch, QUEUE)
            for number in range(250):  # More than what is read in one step.
                world.core.tables.write([("tests", f"{name}{number}", number)])
            in_place.end(SELF, name, id_, epoch, True, lambda producer, error: None)
    yield world
    world.close()


def open_slowly(world: World, step_ms: int) -> Broker:
    """Open another core over the log as it is, and let time pass after each step."""
    world.core.close(write=False)
    core = world.core = Assembly(
        world.broker_config,
        world.store,
        Runtime(
            clock=world.clock,
            schedule=world.timer.schedule,
            call_soon=world.soon.append,
            post=world.posted.put,
            random=Random(7),
            memory_bytes=1 << 30,
            seconds=lambda: 0.0,
        ),
        naming=NAMING,
    )
    steps = 0
    for _ in core.opening(ROCKETMQ):
        steps += 1
        world.advance(step_ms)
        world.end_tick()
    assert steps > 2
    world.broker = core.broker
    return core.broker


def test_what_was_over_long_ago_is_not_ended_again_while_the_log_is_read(shop: World) -> None:
    before, end = entries_of(shop.broker.transactions.in_place), shop.store.log_end
    shop.clock.advance(TIMEOUT_MS * 10)
    broker = open_slowly(shop, 200)
    shop.advance(1_000)
    assert entries_of(broker.transactions.in_place) == before
    assert shop.store.log_end == end, "something was written that nobody asked for"


def test_what_is_open_for_too_long_is_ended_once_everything_is_remembered(shop: World) -> None:
    in_place = shop.broker.transactions.in_place
    id_, epoch = in_place.begin(SELF, "late", TIMEOUT_MS)
    in_place.add_queues(SELF, "late", id_, epoch, QUEUE)
    broker = open_slowly(shop, TIMEOUT_MS)
    assert _state(broker, "late") is TransactionState.ONGOING
    shop.advance(100)
    assert _state(broker, "late") is TransactionState.ABORTED


def test_a_producer_and_epoch_are_given_to_one_only_through_slow_changes_of_masters(
    shop: World,
) -> None:
    given = {
        (name, *shop.broker.transactions.in_place.begin(SELF, name, TIMEOUT_MS)) for name in NAMES
    }
    for _, turn in itertools.product(range(2), (200, 700)):
        shop.clock.advance(TIMEOUT_MS * 10)
        broker = open_slowly(shop, turn)
        for name in NAMES:
            taken = (name, *broker.transactions.in_place.begin(SELF, name, TIMEOUT_MS))
            assert taken not in given
            given.add(taken)


def test_a_producer_that_is_alive_is_not_fenced_by_what_its_own_past_was(shop: World) -> None:
    held = {name: shop.broker.transactions.in_place.begin(SELF, name, 60_000) for name in NAMES}
    for name, (id_, epoch) in held.items():
        shop.broker.transactions.in_place.add_queues(SELF, name, id_, epoch, QUEUE)
    shop.advance(2_000)
    for _ in range(2):
        broker = open_slowly(shop, 200)
        for name, (id_, epoch) in held.items():
            assert _state(broker, name) is TransactionState.ONGOING
            broker.transactions.in_place.add_queues(SELF, name, id_, epoch, QUEUE)


def _state(broker: Broker, name: str) -> TransactionState:
    (found,) = (
        each for each in broker.transactions.in_place.transactions(SELF) if each.name == name
    )
    return found.state
