"""Attacks on what the broker remembers: entries of queues that lie about their records."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.core.cursors.fetch import Cursor, allowed
from onelog.core.filters.tags import Subscription, subscribe
from onelog.core.queues.log_source import LogSource
from onelog.message import NewMessage, encode_properties
from onelog.names import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC, TABLES_TOPIC, TIMER_TOPIC
from onelog.record.entries import ENTRY, ENTRY_BYTES, PADDING, PADDING_SIZE
from onelog.store import mending
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.mending import Mending
from onelog.store.reader import Fetched
from onelog.store.readonly import open_readonly
from onelog.store.verify import verify
from tests.core.leasing import Reader
from tests.core.queues.yard import Yard
from tests.core.replicas import Follower, Master
from tests.core.world import World, pulled

COUNT = 12
BODIES = [b"message %02d" % number for number in range(COUNT)]
TAGS = "ab"
Entry = tuple[int, int, int]
EMPTY = (0, 0, 0)
PADDED = ENTRY.unpack(PADDING)
Lie = Callable[[list[Entry], list[Entry]], dict[int, Entry]]
"""What entries of a queue become, by those of it and those of another."""


def sized(at: int, change: Callable[[int], int]) -> Lie:
    return lambda mine, others: {at: (mine[at][0], change(mine[at][1]), mine[at][2])}


def placed(at: int, change: Callable[[int], int]) -> Lie:
    return lambda mine, others: {at: (change(mine[at][0]), *mine[at][1:])}


LIES: dict[str, Lie] = {
    "a size that is one too small": sized(5, lambda size: size - 1),
    "a size that is one too large": sized(5, lambda size: size + 1),
    "a size that takes the other topic's record in": sized(5, lambda size: 2 * size),
    "a size of nothing": sized(5, lambda size: 0),
    "a size of one byte": sized(5, lambda size: 1),
    "a negative size": sized(5, lambda size: -size),
    "the smallest size there is": sized(5, lambda size: -(2**31)),
    "a size of half a gigabyte": sized(5, lambda size: 1 << 29),
    "a wrong size at the beginning": sized(0, lambda size: size + 40),
    "a wrong size at the end": sized(COUNT - 1, lambda size: size - 40),
    "a negative size at the end": sized(COUNT - 1, lambda size: -1),
    "a size that reaches over the end of the log": sized(COUNT - 1, lambda size: size + 1),
    "a place one byte too far": placed(5, lambda at: at + 1),
    "a place behind the log": placed(5, lambda at: 1 << 40),
    "a negative place": placed(5, lambda at: -at - 1),
    "no place at all": placed(5, lambda at: 0),
    "the size of padding": sized(5, lambda size: PADDING_SIZE),
    "padding in its place": lambda mine, others: {5: PADDED},
    "padding at the end": lambda mine, others: {COUNT - 1: PADDED},
    "padding at the beginning": lambda mine, others: {0: PADDED},
    "padding over several": lambda mine, others: dict.fromkeys(range(3, 9), PADDED),
    "padding in two places, and a wrong size between": lambda mine, others: {
        3: PADDED,
        **sized(5, lambda size: size - 1)(mine, others),
        7: PADDED,
        8: PADDED,
    },
    "padding for all of them": lambda mine, others: dict.fromkeys(range(COUNT), PADDED),
    "zeros at the end": lambda mine, others: {COUNT - 1: EMPTY},
    "zeros for the last three": lambda mine, others: dict.fromkeys(range(9, COUNT), EMPTY),
    "zeros for all of them": lambda mine, others: dict.fromkeys(range(COUNT), EMPTY),
    "zeros where the search for the end looks": lambda mine, others: {4: (0, 0, 0)},
    "zeros at the beginning": lambda mine, others: {0: (0, 0, 0)},
    "a negative place at the beginning": placed(0, lambda at: -1),
    "the place of the message before": lambda mine, others: {5: mine[4]},
    "the place of the message after": lambda mine, others: {5: mine[6]},
    "the place of the other topic's message of that offset": lambda mine, others: {5: others[5]},
    "all places of the other topic": lambda mine, others: dict(enumerate(others)),
    "two that changed places": lambda mine, others: {4: mine[5], 5: mine[4]},
    "three sizes, and the places between them": lambda mine, others: {
        **sized(2, lambda size: size + 7)(mine, others),
        **placed(3, lambda at: at + 7)(mine, others),
        **sized(8, lambda size: -5)(mine, others),
        **placed(9, lambda at: at - 3)(mine, others),
    },
    "sizes that make up for each other": lambda mine, others: {
        4: (mine[4][0], mine[4][1] + 9, 0),
        5: (mine[5][0] + 9, mine[5][1] - 9, 0),
    },
    "every second entry": lambda mine, others: {
        at: (mine[at][0] + 1, mine[at][1] + 1, 0) for at in range(0, COUNT, 2)
    },
    "noise for all of them": lambda mine, others: {
        at: (0x0101010101010101 * (at + 1), 0x01020304, at) for at in range(COUNT)
    },
}


SOME = (
    "a size that is one too small",
    "a negative size",
    "noise for all of them",
    "a size that takes the other topic's record in",
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()


def fill(world: World) -> None:
    """Two topics whose messages lie in turn, and are alike in everything but their topic."""
    for name in ("orders", "others"):
        world.topic(name, 1)
    for number, body in enumerate(BODIES):
        tags = encode_properties({"TAGS": TAGS[number % 2]})
        world.store.append(
            [NewMessage("orders", 0, body, tags), NewMessage("others", 0, body.upper(), tags)]
        )
        world.clock.advance(1_000)
    world.core.groups.require("readers")


def lie(
    world: World,
    lies: Lie,
    topic: str = "orders",
    other: str = "others",
    *,
    crash: bool = False,
    queue_id: int = 0,
) -> None:
    """Spoil the file of a queue, while nobody has it open, and start again."""
    mine = list(world.store.entries(topic, queue_id, 0, 1_000))
    others = list(world.store.entries(other, 0, 0, 1_000))
    queue = world.store.queue_table.find(topic, queue_id)
    assert queue is not None
    queue.settle()
    path = queue.path(0)
    if crash:
        world.store.flush()
        copy = world.folder.with_name("crashed")
        shutil.copytree(world.folder, copy, ignore=shutil.ignore_patterns("deleted-*"))
        path = copy / path.relative_to(world.folder)
        world.close()
        world.folder = copy
    else:
        world.close()
    with open(path, "r+b") as file:
        for offset, entry in lies(mine, others).items():
            file.seek(offset * ENTRY_BYTES)
            file.write(ENTRY.pack(*entry))
    world.start()


def read_all(
    world: World, topic: str = "orders", step: int = 32, wanted: Subscription | None = None
) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    for _ in range(100):
        result = world.pull(offset, topic, count_max=step, bytes_max=1 << 20, subscription=wanted)
        found += pulled(result)
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return found


@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_cost_no_message_and_bring_no_other(
    world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world)
    lie(world, LIES[kind])
    assert read_all(world) == BODIES
    assert world.store.mending.mended > 0
    assert "written anew" in caplog.text
    mended = world.store.mending.mended
    assert read_all(world) == BODIES
    assert world.store.mending.mended == mended, "it was not repaired for good"
    assert read_all(world, "others") == [body.upper() for body in BODIES]
    world.restart()
    assert read_all(world) == BODIES
    assert world.store.mending.mended == 0
    assert world.send("orders", body=b"next").queue_offset == COUNT


@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_cost_nothing_after_a_crash(world: World, kind: str) -> None:
    fill(world)
    lie(world, LIES[kind], crash=True)
    if kind != "a size that reaches over the end of the log":
        assert not world.store.recovery.clean
    assert read_all(world) == BODIES
    assert world.send("orders", body=b"next").queue_offset == COUNT


CODES: dict[str, Lie] = {
    "another code": lambda mine, others: {5: (*mine[5][:2], mine[5][2] ^ 1)},
    "no code": lambda mine, others: {5: (*mine[5][:2], 0)},
    "a code that no tags have": lambda mine, others: {5: (*mine[5][:2], 1 << 40)},
    "the code of the other tag": lambda mine, others: {4: (*mine[4][:2], mine[5][2])},
    "codes of noise": lambda mine, others: {
        at: (*mine[at][:2], at * 0x01010101) for at in range(COUNT)
    },
}


@pytest.mark.parametrize("step", [2, 32])
@pytest.mark.parametrize("kind", [*CODES, *LIES])
def test_entries_that_lie_hide_no_message_from_a_filter(world: World, kind: str, step: int) -> None:
    fill(world)
    lie(world, {**CODES, **LIES}[kind])
    for number, tag in enumerate(TAGS):
        assert read_all(world, step=step, wanted=subscribe("orders", tag)) == BODIES[number::2]
    assert world.store.mending.mended > 0
    mended = world.store.mending.mended
    assert read_all(world) == BODIES
    assert world.store.mending.mended == mended


@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_hide_no_message_from_a_condition(world: World, kind: str) -> None:
    fill(world)
    lie(world, LIES[kind])
    for number, tag in enumerate(TAGS):
        wanted = subscribe("orders", f"TAGS = '{tag}'", "SQL92")
        assert read_all(world, wanted=wanted) == BODIES[number::2]


@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_lead_no_search_by_time_astray(world: World, kind: str) -> None:
    fill(world)
    times = [message.store_ms for message in world.store.messages("orders", 0, 0, COUNT)]
    lie(world, LIES[kind])
    for offset in (5, 0, COUNT - 1, *range(COUNT)):
        assert world.store.offset_by_time("orders", 0, times[offset]) == offset
        assert world.store.offset_by_time("orders", 0, times[offset], upper=True) == offset


def test_what_comes_behind_a_repaired_entry_is_on_disk_at_the_next_checkpoint(
    world: World,
) -> None:
    fill(world)
    lie(world, sized(5, lambda size: size + 1))
    assert read_all(world) == BODIES
    world.send("orders", body=b"next")
    queue = world.store.queue_table.find("orders", 0)
    assert queue is not None
    flushed: list[int] = []
    with mock.patch.object(ConsumeQueue, "flush", lambda self: flushed.append(self.end)):
        world.store.flush()
        world.store.flush()
    assert COUNT + 1 in flushed


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("kind", SOME)
def test_entries_that_lie_are_seen_through_in_small_steps(
    world: World, kind: str, step: int
) -> None:
    fill(world)
    lie(world, LIES[kind])
    assert read_all(world, step=step) == BODIES


@pytest.mark.parametrize("at_once_bytes", [0, 256 << 10])
def test_an_entry_that_is_spoilt_while_the_broker_runs_is_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch, at_once_bytes: int
) -> None:
    monkeypatch.setattr(mending, "_SEARCHED_AT_ONCE_BYTES", at_once_bytes)
    fill(world)
    queue = world.store.queue_table.find("orders", 0)
    assert queue is not None
    queue.settle()
    at, size, _ = queue.entry(5)
    with open(queue.path(0), "r+b") as file:
        file.seek(5 * ENTRY_BYTES)
        file.write(ENTRY.pack(at, 2 * size, 0))
    assert read_all(world) == BODIES


@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_cost_a_group_of_pop_no_message(world: World, kind: str) -> None:
    fill(world)
    lie(world, LIES[kind])
    reader = Reader(world, topic="orders")
    found: list[bytes] = []
    for _ in range(20):
        got = reader.pop(queue_id=0)
        found += [each.body for each in got]
    assert found == BODIES


@pytest.mark.parametrize("at_once_bytes", [0, 256 << 10])
@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_cost_a_declared_queue_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at_once_bytes: int
) -> None:
    monkeypatch.setattr(mending, "_SEARCHED_AT_ONCE_BYTES", at_once_bytes)
    yard = Yard(tmp_path / "yard")
    for name in ("orders", "others"):
        yard.queue(name)
    for body in BODIES:
        yard.put_all(body, key="orders")
        yard.put_all(body.upper(), key="others")
    lie(yard, LIES[kind])
    assert yard.drain("orders") == BODIES
    assert yard.drain("others") == [body.upper() for body in BODIES]
    yard.close()


@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_cost_who_wants_one_tag_no_message(world: World, kind: str) -> None:
    for name in ("orders", "others"):
        world.topic(name, 1)
    for body in BODIES:
        world.send("orders", body=body, TAGS="a")
        world.send("others", body=body.upper(), TAGS="a")
    world.core.groups.require("readers")
    entries = list(world.store.entries("orders", 0, 0, COUNT))

    def but_for_the_tag(mine: list[Entry], others: list[Entry]) -> dict[int, Entry]:
        # What does not say that it has the tag is not looked at.
        lies = LIES[kind](mine, others)
        return {at: (*entry[:2], entries[at][2]) for at, entry in lies.items()}

    lie(world, but_for_the_tag)
    wanted = subscribe("orders", "a")
    found: list[bytes] = []
    offset = 0
    while offset < COUNT:
        result = world.pull(offset, subscription=wanted)
        found += pulled(result)
        assert result.next_offset > offset
        offset = result.next_offset
    assert found == BODIES


@pytest.mark.parametrize("kind", [*SOME, "the place of the message after"])
def test_entries_of_batches_that_lie_cost_no_batch(world: World, kind: str) -> None:
    for name in ("orders", "others"):
        world.topic(name, 1)
    for body in BODIES[: COUNT // 3]:
        world.store.append(
            [
                NewMessage("orders", 0, body, inner_count=3),
                NewMessage("others", 0, body.upper(), inner_count=3),
            ]
        )
    lie(world, LIES[kind])
    found = world.store.messages("orders", 0, 0, COUNT)
    assert [bytes(each.body) for each in found] == BODIES[: COUNT // 3]
    assert world.store.mending.mended > 0


@pytest.mark.parametrize("kind", [*SOME, "the place of the message before"])
def test_entries_of_a_queue_that_shares_records_are_repaired(world: World, kind: str) -> None:
    extra = f"{LIGHT_QUEUE_PREFIX}extra"
    for name in ("orders", "others"):
        world.topic(name, 1)
    for body in BODIES:
        world.store.append(
            [
                NewMessage("orders", 0, b"alone"),
                NewMessage("orders", 0, body, extra_queues=(extra,)),
                NewMessage("others", 0, body.upper()),
            ]
        )
    lie(world, LIES[kind], extra)
    found = world.store.messages(extra, 0, 0, COUNT)
    assert [bytes(each.body) for each in found] == BODIES


def test_what_is_nowhere_in_the_log_is_not_looked_for_again_and_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world)
    at = next(world.store.entries("orders", 0, 5, 1))[0]
    segment = world.store.log.segment_at(at)
    with open(segment.path, "r+b") as file:
        file.seek(at - segment.start + 90)
        file.write(b"\xff" * 4)  # The record itself is damaged now.
    lie(world, sized(5, lambda size: size + 3))
    for _ in range(3):
        found = read_all(world, step=1)
        assert [body for body in found if body in BODIES] == BODIES[:5] + BODIES[6:]
    assert caplog.text.count("the message is lost") == 1


def test_a_follower_repairs_entries_that_lie(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True)
    fill(master)
    master.confirm()
    follower = Follower.at(tmp_path / "follower", clock=master.clock)
    follower.receive(master.store)
    queue = follower.store.queue_table.find("orders", 0)
    assert queue is not None
    queue.settle()
    entries = list(queue.entries(0, COUNT))
    with open(queue.path(0), "r+b") as file:
        file.seek(5 * ENTRY_BYTES)
        file.write(ENTRY.pack(entries[5][0], -entries[5][1], 0))
    assert read_all(follower) == BODIES
    assert list(queue.entries(0, COUNT)) == entries
    follower.close()
    master.close()


def test_a_store_whose_entries_were_repaired_has_no_fault(world: World) -> None:
    fill(world)
    lie(world, LIES["noise for all of them"])
    assert read_all(world) == BODIES
    world.core.close()
    world.store.close()
    assert verify(world.folder, index_slots=world.store_config.index_slots).clean
    world.start()


@pytest.mark.parametrize("kind", [*SOME, "all places of the other topic"])
def test_who_only_reads_a_store_is_not_deceived_and_changes_nothing(
    world: World, kind: str
) -> None:
    fill(world)
    lie(world, LIES[kind])
    world.close()
    path = next((world.folder / "consumequeue" / "orders" / "0").iterdir())
    before = path.read_bytes()
    reader = open_readonly(world.folder, index_slots=world.store_config.index_slots)
    found = reader.messages("orders", 0, 0, COUNT)
    assert [bytes(each.body) for each in found] == BODIES
    assert path.read_bytes() == before
    world.start()


def test_an_entry_of_the_tables_that_lies_changes_nothing_that_is_remembered(world: World) -> None:
    fill(world)
    for number in range(9):
        world.topic(f"topic{number}", 2)
    entries = list(world.store.entries(TABLES_TOPIC, 0, 0, 1_000))
    queue = world.store.queue_table.find(TABLES_TOPIC, 0)
    assert queue is not None
    world.store.close()
    with open(queue.path(0), "r+b") as file:
        for offset in range(3, len(entries)):
            file.seek(offset * ENTRY_BYTES)
            file.write(ENTRY.pack(entries[offset][0] + 1, 2 * entries[offset][1], 0))
    world.start()
    assert all(world.core.topics.get(f"topic{number}") for number in range(9))


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("topic", [TIMER_TOPIC, SCHEDULE_TOPIC])
def test_entries_that_lie_cost_no_message_that_waits(world: World, topic: str, kind: str) -> None:
    queue_id = 0 if topic == TIMER_TOPIC else 2
    fill(world)
    for body in BODIES:
        if topic == TIMER_TOPIC:
            world.send("orders", body=b"late " + body, TIMER_DELAY_MS="60000")
        else:
            world.send("orders", body=b"late " + body, DELAY="3")
        world.store.append([NewMessage("others", 0, body)])
    lie(world, LIES[kind], topic, queue_id=queue_id)
    world.timer.advance(120_000)
    assert sorted(read_all(world)[COUNT:]) == [b"late " + body for body in BODIES]


@pytest.mark.parametrize("how", ["all", "tag", "condition"])
@pytest.mark.parametrize(
    "kind", ["a wrong size at the beginning", "padding over several", "noise for all of them"]
)
def test_a_long_stretch_of_the_log_is_searched_by_a_worker(
    world: World, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    lie(world, LIES[kind])
    monkeypatch.setattr(mending, "_SEARCHED_AT_ONCE_BYTES", 0)
    at_work: list[bool] = []
    searched: list[bool] = []
    offload, in_log = world.timer.offload, Mending._in_log

    def worker(work: Callable[[], None]) -> None:
        at_work.append(True)
        offload(work)
        at_work.pop()

    def watched(self: Mending, *where: Any) -> Any:
        searched.append(bool(at_work))
        return in_log(self, *where)

    monkeypatch.setattr(world.core.cold_reads, "_offload", worker)
    monkeypatch.setattr(Mending, "_in_log", watched)
    wanted = {
        "all": None,
        "tag": subscribe("orders", "a || b"),
        "condition": subscribe("orders", "TAGS IS NOT NULL", "SQL92"),
    }[how]
    assert read_all(world, wanted=wanted) == BODIES
    assert searched
    assert all(searched)
    assert world.store.mending.mended > 0


def test_who_reads_while_another_waits_for_a_search_gets_the_same(world: World) -> None:
    fill(world)
    lie(world, LIES["padding over several"])
    with mock.patch.object(mending, "_SEARCHED_AT_ONCE_BYTES", 0):
        works: list[Callable[[], None]] = []
        with mock.patch.object(world.core.cold_reads, "_offload", works.append):
            limits = allowed(world.broker.admin.config, 32, 0, 0)
            answers = [world.fetch([Cursor("readers", "orders", 0, 3)], limits) for _ in range(3)]
        assert not any(answers)
        for work in works:
            worker = threading.Thread(target=work)
            worker.start()
            worker.join()
        while not world.posted.empty():
            world.posted.get()()
        for ((result,),) in answers:
            assert isinstance(result, Fetched)
            found = pulled(result)
            assert found == BODIES[3 : 3 + len(found)] != []


def test_a_declared_queue_knows_its_size_whatever_entries_say(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "yard")
    for name in ("orders", "others"):
        yard.queue(name)
    for body in BODIES:
        yard.put_all(body, key="orders")
        yard.put_all(body.upper(), key="others")
    lie(yard, LIES["padding over several"])
    with mock.patch.object(mending, "_SEARCHED_AT_ONCE_BYTES", 0):
        source = yard.find("orders").ledgers[0].source
        assert isinstance(source, LogSource)
        sizes = [0, 0]
        while sizes[1] < COUNT:
            size, end = source.measure(sizes[1], COUNT)
            assert end > sizes[1]
            sizes = [sizes[0] + size, end]
    assert sizes[0] == sum(map(len, BODIES))
    yard.close()
