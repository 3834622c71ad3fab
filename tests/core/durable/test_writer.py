"""The one writer of the log: what it appends together, in which order, and whom it tells when."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import onelog
from onelog.core.access import SELF
from onelog.core.durable.tables import LEASES_TOPIC
from onelog.core.durable.writer import nobody
from onelog.errors import MessageError, OnelogError, StoreFullError
from onelog.message import Appended, NewMessage, NewRun
from onelog.names import TABLES_TOPIC
from tests.core.world import World

FULL = StoreFullError("the disk is full")


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 4)
    return world


class Appends:
    """Notes the topics of every list that the store takes."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lists: list[list[str]] = []
        self._append = world.store.append
        monkeypatch.setattr(world.store, "append", self._noted)
        monkeypatch.setattr(world.store, "append_own", self._noted)

    def _noted(self, messages: Sequence[NewMessage]) -> list[Appended]:
        self.lists.append([message.topic for message in messages])
        return self._append(messages)


@pytest.fixture
def appends(orders: World, monkeypatch: pytest.MonkeyPatch) -> Appends:
    return Appends(orders, monkeypatch)


def message(body: bytes = b"x", topic: str = "orders") -> NewMessage:
    return NewMessage(topic, 0, body)


def publish(world: World, *bodies: bytes) -> None:
    for body in bodies:
        world.broker.publish.send(SELF, message(body), world.on_stored, body)


def mixed(random: Random, count: int) -> list[NewMessage]:
    """Messages of all kinds: batches, some for several topics, parts of transactions."""
    found = []
    for _ in range(count):
        topic = random.choice(["a", "b", "c", "unwatched"])
        more = random.choice([(), (), ("c",), ("a", "unwatched")])
        extra = tuple(each for each in more if each != topic)
        flags = random.choice([0, 0, 0, 4, 8])
        copies = random.choice([1, 1, 3]) if not extra and not flags else 1
        body = b"%d" % random.getrandbits(60)
        message = NewMessage(topic, random.randrange(2), body, sys_flag=flags)
        found.append(message._replace(inner_count=copies, extra_queues=extra))
    return found


@pytest.mark.parametrize("way", ["tick", "now", "one by one"])
def test_who_watches_a_queue_is_told_of_each_message_and_where_it_is(
    orders: World, way: str
) -> None:
    writer, store, random = orders.core.writer, orders.store, Random(7)
    told: dict[tuple[str, int], list[tuple[int, bytes]]] = {}

    def entered(key: tuple[str, int], messages: Sequence[NewMessage | NewRun], offset: int) -> None:
        for each in messages:
            assert isinstance(each, NewMessage)
            told.setdefault(key, []).append((offset, bytes(each.body)))
            offset += each.inner_count

    for name in ("a", "b", "c", "unwatched"):
        orders.topic(name, 2)
        for queue_id in (0, 1) if name != "unwatched" else ():
            writer.watch((name, queue_id), partial(entered, (name, queue_id)))
    for _ in range(30):
        some = mixed(random, random.randrange(1, 12))
        if way == "now":
            writer.write_now(some)
            continue
        for each in some:
            writer.put(each, nobody)
        if way == "one by one":
            writer.put(NewMessage("a", 0, b"", bytes(40_000)), nobody)
        orders.end_tick()
    assert len(told) == 6
    for key, got in told.items():
        entries = list(store.entries(*key, 0, 10_000))
        assert len(dict.fromkeys(entries)) == len(got)
        at = [entries[offset][0] for offset, _ in got]
        assert [bytes(store.message_at(each).body) for each in at] == [body for _, body in got]


def told(world: World) -> list[tuple[Any, type[OnelogError] | None]]:
    return [(each.token, type(each.error) if each.error else None) for each in world.told]


def test_messages_endings_and_records_of_leases_are_one_append(
    orders: World, appends: Appends
) -> None:
    orders.send()
    appends.lists.clear()
    written: list[OnelogError | None] = []
    publish(orders, b"1", b"2")
    writer = orders.core.writer
    writer.put_together([message(b"3"), message(b"4")], orders.on_stored, "together")
    record = orders.core.lease_tables.record([("words", "key", 1)])
    writer.join_tick(lambda: writer.put_records(record, written.append))
    orders.end_tick()
    assert appends.lists == [["orders"] * 4 + [LEASES_TOPIC]]
    assert written == [None]
    assert told(orders) == [(b"1", None), (b"2", None), ("together", None)]
    assert orders.core.stats.totals.put_count == 5


def test_who_writes_at_once_comes_behind_what_the_tick_has_so_far(
    orders: World, appends: Appends
) -> None:
    publish(orders, b"1")
    orders.core.tables.write([("words", "key", 1)])
    orders.core.writer.write_now([message(b"2")])
    publish(orders, b"3")
    assert orders.bodies("orders") == [b"1", b"2"]
    assert orders.told == [], "nobody is called back from the middle of a change"
    orders.end_tick()
    assert [topics[0] for topics in appends.lists] == ["orders", TABLES_TOPIC, "orders", "orders"]
    assert orders.bodies("orders") == [b"1", b"2", b"3"]
    assert told(orders) == [(b"1", None), (b"3", None)]
    orders.end_tick()
    assert len(orders.told) == 2


def test_runs_keep_their_place_before_what_is_written_at_once(orders: World) -> None:
    publish(orders, b"1")
    run = NewRun("orders", 0, [(0, b"2", b""), (0, b"", b"")], b"2")
    orders.broker.publish.send(SELF, run, orders.on_stored, "run")
    orders.core.writer.write_now([NewRun.of(message(b"4"))])
    assert orders.bodies("orders") == [b"1", b"2", b"", b"4"]
    orders.end_tick()
    assert told(orders) == [(b"1", None), ("run", None)]
    assert orders.told[1].appended.queue_offset == 1


def test_a_record_that_cannot_be_stored_spoils_no_message_and_no_other_record(
    orders: World,
) -> None:
    writer, written = orders.core.writer, list[Any]()
    bad = message(topic=TABLES_TOPIC)._replace(born_ms=1 << 70)
    good = orders.core.tables.record([("words", "key", 1)])
    end = orders.store.max_offset(TABLES_TOPIC, 0)
    publish(orders, b"1")

    def add() -> None:
        writer.put_records([bad], lambda error: written.append(type(error)))
        writer.put_records(good, lambda error: written.append(error))
        writer.put_records([], lambda error: written.append(error))

    writer.join_tick(add)
    orders.end_tick()
    assert written == [MessageError, None, None]
    assert told(orders) == [(b"1", None)]
    assert orders.store.max_offset(TABLES_TOPIC, 0) == end + 1


def test_a_message_that_cannot_be_stored_spoils_nothing_that_is_written_at_once(
    orders: World,
) -> None:
    publish(orders, b"1")
    orders.broker.publish.send(SELF, message()._replace(born_ms=1 << 70), orders.on_stored, "bad")
    publish(orders, b"2")
    orders.core.writer.write_now([message(b"3")])
    orders.end_tick()
    assert orders.bodies("orders") == [b"1", b"2", b"3"]
    assert told(orders) == [(b"1", None), ("bad", MessageError), (b"2", None)]


def test_on_a_full_disk_records_have_head_room_and_messages_beside_them_have_not(
    orders: World,
) -> None:
    written: list[OnelogError | None] = []
    writer, retention = orders.core.writer, orders.store.retention
    records = orders.core.tables.record([("words", "key", 1)])

    def record() -> None:
        writer.join_tick(lambda: writer.put_records(records, written.append))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders.store.refusals, "full", FULL)
        patch.setattr(retention, "has_head_room", lambda share: True)
        patch.setattr(orders.store.refusals, "now", FULL)
        publish(orders, b"in the tick")
        record()
        orders.end_tick()
        publish(orders, b"before a record")
        orders.core.tables.write([("words", "key", 2)])
        publish(orders, b"before a job with head room")
        with writer.head_room():
            writer.write_now([message(b"moved")])
        record()
        orders.end_tick()
    assert orders.bodies("orders") == [b"moved"]
    assert [error for _, error in told(orders)] == [StoreFullError] * 3
    assert written == [None, None]


def test_a_topic_is_deleted_behind_what_was_sent_to_it(orders: World) -> None:
    publish(orders, b"last")
    orders.broker.topics.delete(SELF, "orders")
    orders.end_tick()
    assert told(orders) == [(b"last", None)]
    assert orders.store.max_offset("orders", 0) == 0
    orders.crash()
    assert orders.store.max_offset("orders", 0) == 0


def test_nothing_in_the_core_appends_past_the_writer_or_asks_the_disk_past_durability() -> None:
    core = Path(onelog.__file__).parent / "core"
    past = re.compile(r"store\.(append\w*|when_flushed|delete_topic|head_room)\(")
    found = {path.name for path in core.rglob("*.py") if past.search(path.read_text())}
    assert found == {"writer.py", "durability.py"}
