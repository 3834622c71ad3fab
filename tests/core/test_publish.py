from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import (
    BrokerBusyError,
    EmptyMessageError,
    FlushTimeoutError,
    InvalidQueueError,
    MessageError,
    MessageTooLargeError,
    OnelogError,
    PropertiesTooLargeError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import Appended, NewMessage, NewRun, SysFlag, encode_properties
from tests.core.world import SMALL_STORE, World, pulled


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 4)
    return world


def message(topic: str = "orders", queue_id: int = 0, body: bytes = b"x") -> NewMessage:
    return NewMessage(topic, queue_id, body)


def run(
    *bodies: bytes, topic: str = "orders", queue_id: int = 0, properties: bytes = b""
) -> NewRun:
    parts = [(0, body, properties) for body in bodies]
    return NewRun(topic, queue_id, parts, b"".join(bodies) + properties * len(parts))


def submit(world: World, *messages: NewMessage) -> None:
    for number, each in enumerate(messages):
        world.broker.publish.send(SELF, each, world.on_stored, number)


def test_all_messages_of_a_tick_are_written_at_once_and_each_is_acknowledged(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    append = orders.store.append

    def counted(messages: list[NewMessage]) -> list[Appended]:
        writes.append(len(messages))
        return append(messages)

    monkeypatch.setattr(orders.store, "append", counted)
    submit(orders, *(message(queue_id=number % 4) for number in range(64)))
    assert orders.told == []
    assert len(orders.soon) == 1
    orders.end_tick()
    assert writes == [64]
    assert [told.token for told in orders.told] == list(range(64))
    assert [told.appended.queue_offset for told in orders.told[::4]] == list(range(16))
    submit(orders, message())
    assert len(orders.soon) == 1


def test_a_negative_queue_id_gets_some_write_queue(world: World) -> None:
    world.broker.topics.create(SELF, TopicConfig("orders", 8, 4))
    for _ in range(100):
        submit(world, message(queue_id=-1))
    world.end_tick()
    counts = [world.store.max_offset("orders", queue_id) for queue_id in range(8)]
    assert sum(counts) == 100
    assert all(counts[:4])
    assert not any(counts[4:])


def test_a_queue_that_is_only_read_takes_messages_but_one_beyond_does_not(world: World) -> None:
    world.broker.topics.create(SELF, TopicConfig("orders", 8, 4))
    submit(world, message(queue_id=7))
    with pytest.raises(InvalidQueueError):
        submit(world, message(queue_id=8))
    world.end_tick()
    assert len(world.told) == 1


def test_what_is_wrong_with_a_message_is_raised_where_it_is_submitted(orders: World) -> None:
    too_large = b"x" * (SMALL_STORE.body_bytes_max + 1)
    wrong: list[tuple[NewMessage, type[OnelogError]]] = [
        (message("nowhere"), TopicNotFoundError),
        (message("no\tcontrols"), TopicNotFoundError),
        (message(""), TopicNotFoundError),
        (message("SCHEDULE_TOPIC_XXXX"), TopicPermissionError),
        (message("RMQ_SYS_TRANS_HALF_TOPIC"), TopicPermissionError),
        (message("onelog_sys_tables"), TopicPermissionError),
        (message(queue_id=4), InvalidQueueError),
        (message(body=too_large), MessageTooLargeError),
        (message()._replace(properties=b"x" * 32_768), PropertiesTooLargeError),
    ]
    for each, error in wrong:
        with pytest.raises(error):
            submit(orders, each)
    assert orders.soon == []
    submit(orders, message())
    orders.end_tick()
    assert orders.bodies("orders") == [b"x"]


def test_a_topic_without_write_permission_refuses_until_it_is_given(orders: World) -> None:
    submit(orders, message())
    config = orders.core.topics.require("orders")
    orders.broker.topics.create(SELF, replace(config, perm=4))
    with pytest.raises(TopicPermissionError):
        submit(orders, message())
    orders.broker.topics.create(SELF, replace(config, perm=2))
    submit(orders, message())
    orders.end_tick()
    assert len(orders.bodies("orders")) == 2


def test_fewer_queues_hold_from_the_next_message_on(orders: World) -> None:
    submit(orders, message(queue_id=3))
    orders.topic("orders", 2)
    with pytest.raises(InvalidQueueError):
        submit(orders, message(queue_id=3))
    orders.end_tick()


def test_a_topic_with_several_tags_per_message_marks_its_messages(world: World) -> None:
    world.topic("orders", 1, filter_type="MULTI_TAG")
    world.send("orders")
    assert world.messages("orders")[0].sys_flag & SysFlag.MULTI_TAGS


def test_a_message_that_only_the_store_can_refuse_spoils_no_other(orders: World) -> None:
    # Within the limit for properties, but not once the store has added its own.
    unlucky = message()._replace(properties=b"p" * 32_760, inner_count=3)
    submit(orders, message(body=b"first"), unlucky)
    orders.broker.publish.send(SELF, run(b"b1", b"b2"), orders.on_stored, "batch")
    submit(orders, message(body=b"last"))
    orders.end_tick()
    assert orders.bodies("orders") == [b"first", b"b1", b"b2", b"last"]
    assert [type(told.error) for told in orders.told] == [
        type(None),
        PropertiesTooLargeError,
        type(None),
        type(None),
    ]
    assert orders.told[1].appended is None
    assert len(orders.told[2].appended.log_offsets) == 2
    assert orders.core.stats.totals.put_failed == 1


@pytest.mark.parametrize(
    "bad",
    [
        message()._replace(flag=1 << 70),
        message()._replace(sys_flag=1 << 70),
        message()._replace(born_ms=1 << 70),
        message()._replace(reconsume_times=1 << 70),
    ],
    ids=["flag", "sys_flag", "born_ms", "reconsume_times"],
)
def test_a_number_that_does_not_fit_its_field_spoils_no_other(
    orders: World, bad: NewMessage
) -> None:
    submit(orders, message(body=b"first"), bad, message())
    orders.end_tick()
    assert [type(told.error) for told in orders.told] == [type(None), MessageError, type(None)]
    assert orders.bodies("orders") == [b"first", b"x"]
    assert orders.send("orders").queue_offset == 2


def test_a_store_that_refuses_is_told_to_every_sender(orders: World) -> None:
    orders.store.refuse_writes(StoreFullError("disk is full"))
    submit(orders, message(), message())
    orders.broker.publish.send(SELF, run(b"x", b"x"), orders.on_stored)
    orders.end_tick()
    assert [type(told.error) for told in orders.told] == [StoreFullError] * 3
    assert orders.core.stats.totals.put_failed == 4


def test_a_batch_stays_together_and_is_acknowledged_as_one(orders: World) -> None:
    submit(orders, message())
    batch = run(b"0", b"1", b"2", b"3", b"4", queue_id=2)
    orders.broker.publish.send(SELF, batch, orders.on_stored, "batch")
    submit(orders, message())
    orders.end_tick()
    told = orders.told[1]
    assert told.token == "batch"
    assert told.appended.queue_offset == 0
    assert told.appended.log_offsets == [each.log_offset for each in orders.messages("orders", 2)]
    assert orders.bodies("orders", 2) == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_and_batches_of_one_tick_keep_their_order(orders: World) -> None:
    submit(orders, message(body=b"1"))
    orders.broker.publish.send(SELF, run(b"2", b"3"), orders.on_stored)
    orders.broker.publish.send(SELF, run(b"4"), orders.on_stored)
    orders.core.writer.put_together([message(body=b"5"), message(body=b"6")], orders.on_stored)
    orders.broker.publish.send(SELF, run(b"7", b"8"), orders.on_stored)
    orders.end_tick()
    assert orders.bodies("orders") == [b"%d" % number for number in range(1, 9)]
    assert [told.error for told in orders.told] == [None] * 5
    assert orders.core.stats.totals.put_count == 8


def test_a_batch_that_only_the_store_can_refuse_spoils_no_other(orders: World) -> None:
    unlucky = run(b"bad")._replace(born_ms=1 << 70)
    for batch in (run(b"1", b"2"), unlucky, run(b"3")):
        orders.broker.publish.send(SELF, batch, orders.on_stored)
    orders.end_tick()
    assert [type(told.error) for told in orders.told] == [type(None), MessageError, type(None)]
    assert orders.bodies("orders") == [b"1", b"2", b"3"]
    totals = orders.core.stats.totals
    assert (totals.put_count, totals.put_failed) == (3, 1)


def test_a_batch_to_a_topic_with_several_tags_is_marked(world: World) -> None:
    world.topic("orders", 1, filter_type="MULTI_TAG")
    world.broker.publish.send(SELF, run(b"1", b"2"), world.on_stored)
    world.end_tick()
    assert all(each.sys_flag & SysFlag.MULTI_TAGS for each in world.messages("orders"))


def test_a_batch_to_any_queue_goes_to_one(orders: World) -> None:
    orders.broker.publish.send(SELF, run(*[b"x"] * 20, queue_id=-1), orders.on_stored)
    orders.end_tick()
    counts = [orders.store.max_offset("orders", queue_id) for queue_id in range(4)]
    assert sorted(counts) == [0, 0, 0, 20]


def test_a_bad_message_in_a_batch_refuses_the_batch(orders: World) -> None:
    orders.send("orders")
    for known in (True, False):
        with pytest.raises(MessageError):
            orders.broker.publish.send(SELF, run(b"x", properties=b"p" * 32_768), orders.on_stored)
        with pytest.raises(EmptyMessageError):
            orders.broker.publish.send(SELF, run(), orders.on_stored)
        if known:
            orders.core.publisher._topic_changed("orders", None)
    orders.broker.topics.create_for_send(SELF, "%RETRY%g", "TBW102", 1)
    with pytest.raises(MessageError, match="retry group"):
        orders.broker.publish.send(SELF, run(b"x", topic="%RETRY%g"), orders.on_stored)
    assert orders.soon == []


def test_a_message_without_a_body_is_a_message(orders: World) -> None:
    submit(orders, message(body=b""), message(body=b"x"))
    orders.broker.publish.send(SELF, run(b"", b"y", b""), orders.on_stored)
    orders.end_tick()
    assert [told.error for told in orders.told] == [None, None, None]
    assert orders.bodies("orders") == [b"", b"x", b"", b"y", b""]
    assert pulled(orders.pull(0)) == [b"", b"x", b"", b"y", b""]
    orders.crash()
    assert orders.bodies("orders") == [b"", b"x", b"", b"y", b""]


def test_who_waits_for_a_queue_is_woken_once_per_tick(orders: World) -> None:
    woken: list[bool] = []
    orders.core.waiting.wait((("orders", 0),), 10_000, lambda wait, late: woken.append(late))
    submit(orders, message(queue_id=1))
    orders.end_tick()
    assert woken == []
    submit(orders, message(), message())
    orders.end_tick()
    assert woken == [False]


def test_a_record_in_extra_queues_wakes_who_waits_for_those(orders: World) -> None:
    orders.topic("copies", 4)
    woken: list[str] = []
    for topic, queue_id in (("%LMQ%light", 0), ("copies", 2), ("copies", 1)):
        orders.core.waiting.wait(
            [(topic, queue_id)],
            10_000,
            lambda wait, late: woken.append(f"{wait.keys[0][0]} {wait.keys[0][1]}"),
        )
    submit(orders, message(queue_id=2)._replace(extra_queues=("%LMQ%light", "copies")))
    orders.end_tick()
    assert sorted(woken) == ["%LMQ%light 0", "copies 2"]


def test_stored_messages_are_counted(orders: World) -> None:
    stored = orders.send("orders", body=b"x" * 100)
    submit(orders, message()._replace(inner_count=3))
    orders.end_tick()
    totals = orders.core.stats.totals
    assert totals.put_count == 4
    assert totals.put_bytes > stored.size
    counted = orders.broker.admin.statistic(SELF, "TOPIC_PUT_NUMS", "orders")
    assert counted[0].total == 4


def test_a_sender_that_fails_to_take_its_answer_does_not_harm_the_others(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(token: Any, appended: Any, error: OnelogError | None) -> None:
        raise ConnectionError("gone")

    orders.broker.publish.send(SELF, message(), broken)
    submit(orders, message())
    orders.end_tick()
    assert len(orders.told) == 1
    assert "could not be handed over" in caplog.text


@pytest.fixture
def synced(tmp_path: Path) -> Any:
    made = World(tmp_path / "synced", replace(SMALL_STORE, flush="sync"))
    made.topic("orders", 4)
    yield made
    made.close()


def test_with_synchronous_flush_the_answer_waits_for_the_disk(synced: World) -> None:
    submit(synced, message(), message())
    synced.broker.publish.send(SELF, run(b"x", b"x"), synced.on_stored)
    synced.end_tick()
    assert synced.told == []
    assert synced.pull(0).messages == 4, "consumers need not wait for the disk"
    synced.run_posted(2)
    assert [told.error for told in synced.told] == [None, None, None]
    assert synced.told[2].appended.queue_offset == 2


class Unanswered:
    """In the place of a disk that hangs, or breaks later."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.callbacks: list[Any] = []
        monkeypatch.setattr(world.store, "when_flushed", self.note)

    def note(self, log_offset: int, callback: Any) -> None:
        self.callbacks.append(callback)


def test_a_disk_that_hangs_is_told_together_with_where_the_message_is(
    synced: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Unanswered(synced, monkeypatch)
    submit(synced, message())
    synced.end_tick()
    synced.advance(5_000)
    assert isinstance(synced.told[0].error, FlushTimeoutError)
    assert synced.told[0].appended.queue_offset == 0


def test_a_flush_that_fails_refuses_the_messages(
    synced: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Unanswered(synced, monkeypatch)
    submit(synced, message())
    synced.end_tick()
    failure: StoreError = StoreFailedError("disk on fire")
    disk.callbacks[0](failure)
    synced.run_posted()
    assert synced.told[0].error is failure
    assert synced.told[0].appended is None


def test_new_messages_are_refused_while_too_many_wait_for_the_disk(
    synced: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Unanswered(synced, monkeypatch)
    monkeypatch.setattr("onelog.core.durable.writer.UNSETTLED_MAX", 2)
    submit(synced, message(), message(), message())
    synced.end_tick()
    with pytest.raises(BrokerBusyError):
        submit(synced, message())
    disk.callbacks[0](None)
    synced.run_posted()
    submit(synced, message())
    synced.end_tick()


def test_properties_reach_the_log_as_they_were_sent(orders: World) -> None:
    orders.send("orders", TAGS="a", KEYS="k1 k2", UNIQ_KEY="u")
    stored = orders.messages("orders")[0]
    assert stored.properties == encode_properties({"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "u"})
