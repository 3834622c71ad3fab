"""How transactions ended, as the files of a store tell it: the same that its broker knows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.errors import StoreCorruptError
from onelog.names import TABLES_FILE
from onelog.store.outcomes import Outcomes, outcomes_in
from onelog.store.readonly import open_readonly
from tests.core.paying import Bazaar, Payer
from tests.core.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()


def by_files(world: World) -> dict[tuple[str, int], Outcomes]:
    return outcomes_in(open_readonly(world.folder), ["orders", "plain", "nowhere"])


def agrees(world: World) -> None:
    found = by_files(world)
    for queue_id in range(2):
        known = found.get(("orders", queue_id), Outcomes())
        end = world.store.max_offset("orders", queue_id)
        producers = world.core.batch_producers
        assert known.stable_end(end) == producers.stable_end("orders", queue_id, end)
        assert known.aborted_between(0, end) == producers.aborted_between(
            "orders", queue_id, 0, end
        )


@pytest.mark.parametrize("seed", range(6))
def test_the_files_of_a_broker_that_runs_tell_what_it_knows(world: World, seed: int) -> None:
    bazaar = Bazaar(world, seed)
    for number in range(80):
        bazaar.step()
        if number % 8 == 0:
            agrees(world)
        if number == 40:
            world.core.tables.snapshot(wait=True)
    agrees(world)
    world.crash()
    agrees(world)
    world.restart()
    agrees(world)


def test_topics_without_transactions_are_not_looked_at(world: World) -> None:
    world.topic("orders", 1)
    world.send("orders")
    assert by_files(world) == {}
    Payer(world, "payer").send("orders", 0, b"one")
    assert list(by_files(world)) == [("orders", 0)]
    world.broker.topics.delete(SELF, "orders")
    assert by_files(world) == {}


def test_a_damaged_snapshot_is_told(world: World) -> None:
    world.core.tables.snapshot(wait=True)
    world.close()
    (world.folder / "config" / TABLES_FILE).write_text("{}")
    with pytest.raises(StoreCorruptError, match=TABLES_FILE):
        by_files(world)
    (world.folder / "config" / TABLES_FILE).unlink()
    world.start()
