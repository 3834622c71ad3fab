import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.core.access import SELF
from onelog.core.durable.tables import PART_ENTRIES, Tables, Versions, in_parts
from onelog.errors import StoreClosedError, StoreCorruptError
from onelog.message import NewMessage
from onelog.names import TABLES_FILE, TABLES_TOPIC
from onelog.store.message_store import MessageStore
from tests.core.world import HELD_S_MAX, SMALL_STORE, World, plain_runtime, plain_writer


class Words:
    """The simplest table there can be."""

    name = "words"

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}

    def apply(self, key: str, value: Any) -> None:
        if value is None:
            self.words.pop(key, None)
        else:
            self.words[key] = value

    def parts(self) -> Iterable[dict[str, Any]]:
        return [self.words]


class Desk:
    """Tables with one table of words, over a store that can be reopened."""

    def __init__(self, folder: Path, config: StoreConfig = SMALL_STORE, **settings: Any) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.config = config
        self.settings = settings
        self.table: type[Words] = Words
        self.open()

    def open(self) -> bool:
        self.store = MessageStore.open(self.folder, self.config, self.clock)
        self.words = self.table()
        self.offloaded: list[Any] = []
        self.tables = Tables(
            self.store,
            plain_writer(self.store, self.clock),
            replace(plain_runtime(self.clock), offload=self.offloaded.append),
            **self.settings,
        )
        self.tables.add(self.words)
        return self.tables.open()

    @property
    def snapshot(self) -> dict[str, Any]:
        loaded = json.loads((self.folder / "config" / TABLES_FILE).read_text())
        assert isinstance(loaded, dict)
        return loaded


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    made = Desk(tmp_path / "store")
    yield made
    made.store.close()


def test_a_change_is_there_after_reopening_without_a_snapshot(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1), ("words", "b", {"x": [1, 2]})])
    desk.tables.write([("words", "a", None)])
    desk.store.close()
    assert desk.open() is True
    assert desk.words.words == {"b": {"x": [1, 2]}}


def test_a_new_store_says_that_it_has_no_tables_yet(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "store")
    desk.store.close()
    assert desk.open() is False
    desk.store.close()


def test_a_snapshot_and_the_records_after_it_make_the_state(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.tables.snapshot(wait=True)
    desk.tables.write([("words", "a", 2), ("words", "c", 3)])
    desk.store.close()
    desk.open()
    assert desk.words.words == {"a": 2, "c": 3}
    assert desk.snapshot["next_offset"] == 1


def test_much_is_opened_in_small_steps(desk: Desk) -> None:
    """Whoever becomes master keeps its lease meanwhile: nothing may hold the loop for long."""
    desk.tables.write([("words", f"s{number}", number) for number in range(2_000)])
    desk.tables.snapshot(wait=True)
    for number in range(1_000):
        desk.tables.write([("words", f"r{number}", number)])
    before = dict(desk.words.words)
    desk.store.close()
    desk.open()
    desk.words.words.clear()
    sizes = [0, *(len(desk.words.words) for _ in desk.tables.opening())]
    assert max(after - earlier for earlier, after in itertools.pairwise(sizes)) <= PART_ENTRIES
    assert len(sizes) > 8
    assert desk.words.words == before


class ManyWords(Words):
    """The same as a large table."""

    def parts(self) -> Iterator[dict[str, Any]]:
        for part in in_parts(self.words):
            yield dict(part)


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_that_is_gathered_while_the_table_changes_makes_the_state_too(
    desk: Desk, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.core.durable.tables.PART_ENTRIES", 3)
    random = Random(seed)
    desk.store.close()
    desk.table = ManyWords
    desk.open()

    def change() -> None:
        key = f"w{random.randrange(20)}"
        desk.tables.write([("words", key, random.choice([None, random.random()]))])

    for _ in range(30):
        change()
    desk.tables.snapshot()
    while not desk.offloaded:
        for _ in range(random.randrange(4)):
            change()
        desk.tables.snapshot_if_due()
    desk.offloaded.pop()()
    for _ in range(random.randrange(4)):
        change()
    now = dict(desk.words.words)
    assert len(desk.snapshot["tables"]["words"]) > 3
    desk.store.close()
    desk.open()
    assert desk.words.words == now


@pytest.mark.usefixtures("no_garbage")
def test_a_snapshot_of_very_many_topics_and_positions_holds_nobody_up(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    for number in range(50_000):
        name = f"topic-{number}"
        world.core.topics.apply(name, {"name": name})
        world.core.offsets.commit("readers", name, 0, number)
    world.advance(5_000)
    world.core.tables.snapshot()
    while world.core.tables._gathering is not None:
        world.advance(10_000)
    assert world.timer.longest_cpu_s < HELD_S_MAX
    world.crash()
    assert len(world.core.topics.all()) > 50_000
    assert len(world.core.offsets.all()) == 50_000
    world.close()


def test_a_snapshot_that_fails_half_way_is_begun_anew(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    with mock.patch.object(desk.words, "parts", side_effect=KeyError("a bug")):
        with pytest.raises(KeyError):
            desk.tables.snapshot()
    assert desk.tables.snapshot_if_due() is False
    desk.tables.snapshot(wait=True)
    assert desk.snapshot["tables"] == {"words": {"a": 1}}


def test_a_record_that_cannot_be_written_changes_nothing(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.store.close()
    with pytest.raises(StoreClosedError):
        desk.tables.write([("words", "a", 2)])
    assert desk.words.words == {"a": 1}


def test_a_snapshot_survives_the_deletion_of_the_records_before_it(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.tables.snapshot(wait=True)
    filler = NewMessage("filler", 0, b"x" * 100_000)
    for _ in range(30):
        desk.store.append([filler])
    desk.clock.advance(SMALL_STORE.retention_ms * 2)
    desk.store.retention.run({}, manual=True)
    assert desk.store.min_offset(TABLES_TOPIC, 0) == 1
    desk.tables.write([("words", "b", 2)])
    desk.store.close()
    desk.open()
    assert desk.words.words == {"a": 1, "b": 2}


def test_records_lost_to_retention_without_a_snapshot_are_reported(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.tables.write([("words", "a", 1)])
    filler = NewMessage("filler", 0, b"x" * 100_000)
    for _ in range(30):
        desk.store.append([filler])
    desk.tables.write([("words", "b", 2)])
    desk.clock.advance(SMALL_STORE.retention_ms * 2)
    desk.store.retention.run({}, manual=True)
    desk.store.close()
    desk.open()
    assert desk.words.words == {"b": 2}
    assert "table records 0 to 0 were deleted" in caplog.text


def test_uncovered_records_in_files_that_may_be_deleted_make_a_snapshot_due(desk: Desk) -> None:
    filler = NewMessage("filler", 0, b"x" * 100_000)
    desk.store.append([filler])
    (place,) = desk.store.append(desk.tables.record([("words", "a", 1)]))
    desk.tables.apply([("words", "a", 1)])
    desk.tables.prepare_retention(place.log_offset)
    assert desk.offloaded == []
    for _ in range(12):
        desk.store.append([filler])
    desk.tables.prepare_retention(SMALL_STORE.segment_bytes)
    assert desk.tables.needed_from() == place.log_offset, "until the worker has written it"
    desk.offloaded.pop()()
    assert desk.snapshot["next_offset"] == 1
    assert desk.tables.needed_from() == desk.store.log_end


def test_a_snapshot_ahead_of_the_log_is_written_anew_before_the_next_record(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.tables.write([("words", "b", 2)])
    desk.tables.snapshot(wait=True)
    # What a power failure does to an unflushed log: its end is gone, the fsynced snapshot is not.
    path = desk.folder / "config" / TABLES_FILE
    path.write_text(path.read_text().replace('"next_offset":2', '"next_offset":9'))
    desk.store.close()
    desk.open()
    assert desk.snapshot["next_offset"] == 2
    desk.tables.write([("words", "c", 3)])
    desk.store.close()
    desk.open()
    assert desk.words.words == {"a": 1, "b": 2, "c": 3}


def test_a_half_written_snapshot_file_is_never_seen(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.tables.snapshot(wait=True)
    # A crash while the next snapshot is written leaves the temporary file behind.
    (desk.folder / "config" / "onelog-tables.tmp").write_bytes(b'{"format": 1, "next_')
    desk.store.close()
    desk.open()
    assert desk.words.words == {"a": 1}


def test_a_snapshot_that_is_garbage_is_refused_by_name(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.tables.snapshot(wait=True)
    desk.store.close()
    (desk.folder / "config" / TABLES_FILE).write_bytes(b"\x00garbage")
    with pytest.raises(StoreCorruptError, match=TABLES_FILE):
        desk.open()


def test_a_snapshot_of_another_format_is_refused(desk: Desk) -> None:
    desk.tables.snapshot(wait=True)
    path = desk.folder / "config" / TABLES_FILE
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    desk.store.close()
    with pytest.raises(StoreCorruptError, match="format 2"):
        desk.open()


def test_entries_of_unknown_tables_are_kept(desk: Desk) -> None:
    desk.tables.write([("of-a-later-version", "k", {"v": 1}), ("of-a-later-version", "gone", 1)])
    desk.tables.write([("of-a-later-version", "gone", None)])
    desk.tables.close()
    assert desk.snapshot["tables"]["of-a-later-version"] == {"k": {"v": 1}}
    desk.store.close()
    desk.open()
    desk.tables.close()
    assert desk.snapshot["tables"]["of-a-later-version"] == {"k": {"v": 1}}


def test_many_changes_are_spread_over_records_of_bounded_size(desk: Desk) -> None:
    changes = [("words", f"key-{number}", "v" * 1_000) for number in range(1_000)]
    desk.tables.write(changes)
    assert 3 < desk.store.max_offset(TABLES_TOPIC, 0) < 10
    desk.store.close()
    desk.open()
    assert len(desk.words.words) == 1_000


def test_a_snapshot_is_due_after_many_records(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "store", snapshot_records=3)
    for number in range(2):
        desk.tables.write([("words", str(number), number)])
    desk.tables.snapshot_if_due()
    assert desk.offloaded == []
    desk.tables.write([("words", "2", 2)])
    desk.tables.snapshot_if_due()
    assert len(desk.offloaded) == 1
    desk.offloaded[0]()
    assert desk.snapshot["next_offset"] == 3
    desk.tables.snapshot_if_due()
    assert len(desk.offloaded) == 1
    desk.store.close()


def test_a_snapshot_is_due_when_an_uncovered_record_is_old(desk: Desk) -> None:
    desk.clock.advance(300_000)
    desk.tables.snapshot_if_due()
    assert desk.offloaded == []
    desk.tables.write([("words", "a", 1)])
    desk.tables.snapshot_if_due()
    assert len(desk.offloaded) == 1


def test_a_snapshot_that_a_worker_writes_late_does_not_replace_a_newer_one(desk: Desk) -> None:
    desk.tables.write([("words", "a", 1)])
    desk.tables.snapshot()
    desk.tables.write([("words", "a", 2)])
    desk.tables.snapshot(wait=True)
    desk.offloaded[0]()
    assert desk.snapshot["next_offset"] == 2
    assert desk.snapshot["tables"]["words"] == {"a": 2}


def test_a_snapshot_that_cannot_be_written_is_logged_and_tried_again(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.tables.write([("words", "a", 1)])
    (desk.folder / "config").write_text("a file where a folder should be")
    desk.clock.advance(300_000)
    desk.tables.snapshot_if_due()
    desk.offloaded.pop()()
    assert "cannot write the tables' snapshot" in caplog.text
    (desk.folder / "config").unlink()
    desk.clock.advance(300_000)
    desk.tables.snapshot_if_due()
    desk.offloaded.pop()()
    assert desk.snapshot["next_offset"] == 1


def test_versions_count_up_and_remember_when(desk: Desk) -> None:
    versions = Versions(desk.clock)
    desk.tables.add(versions)
    assert versions["topics"].counter == 0
    desk.tables.write([versions.next("topics")])
    desk.clock.advance(1_000)
    desk.tables.write([versions.next("topics")])
    assert versions["topics"].counter == 2
    assert versions["topics"].timestamp_ms == desk.clock.now_ms()


def test_topics_groups_and_positions_survive_a_kill_at_any_moment(world: World) -> None:
    world.topic("orders", 4)
    world.crash()
    assert world.core.topics.require("orders").read_queues == 4
    world.core.groups.require("readers")
    for _ in range(17):
        world.send("orders", 2)
    world.commit("readers", "orders", 2, 17)
    world.advance(world.broker_config.offsets_flush_ms)
    world.crash()
    assert world.core.groups.get("readers") is not None
    assert world.broker.cursors.query(SELF, "readers", "orders", 2) == 17
    world.core.tables.snapshot(wait=True)
    world.broker.topics.delete(SELF, "orders")
    world.crash()
    assert world.core.topics.get("orders") is None
    assert world.broker.cursors.query(SELF, "readers", "orders", 2) is None
