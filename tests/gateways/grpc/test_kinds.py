"""Topics with priorities, lite topics, and types that are checked for remoting clients, too."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import rocketmq

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.rocketmq import lite
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.grpc.live import (
    SECONDS,
    Listener,
    address,
    configuration,
    grpc_broker,
    in_thread,
    make_topic,
    message,
    producer,
    receive,
    simple_consumer,
)
from tests.gateways.remoting.live import client
from tests.waiting import eventually, wait_until

PRIORITY = "_SYS_MSG_PRIORITY_"


def with_priority(topic: str, value: int) -> rocketmq.Message:
    made = message(topic, b"%d" % value)
    made.priority = value
    return made


async def test_high_priorities_come_first(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "urgent", "PRIORITY", queues=4)

        def work() -> list[bytes]:
            with producer(at, topic) as sending, simple_consumer(at, "g", topic) as reading:
                receive(reading, 1, seconds=0.3)
                for value in (0, 2, 1, 9, 3, 0):
                    sending.send(with_priority(topic, value))
                return [bytes(each.body) for each in receive(reading, 6)]

        assert await in_thread(work) == [b"9", b"3", b"2", b"1", b"0", b"0"]


@pytest.mark.parametrize(("percent", "first"), [(0, b"new"), (100, b"again")])
async def test_what_came_back_is_the_lowest_priority_or_the_highest(
    tmp_path: Path, percent: int, first: bytes
) -> None:
    settings = {"broker__priority_retry_percent": percent}
    async with grpc_broker(tmp_path, **settings) as server:
        at, topic = address(server), make_topic(server, "urgent", "PRIORITY", queues=2)

        def work() -> bytes:
            with producer(at, topic) as sending, simple_consumer(at, "g", topic) as reading:
                receive(reading, 1, seconds=0.3)
                sending.send(with_priority(topic, 1)).message_id  # noqa: B018
                (got,) = receive(reading, 1, invisible_s=1)
                wait_until(lambda: not server.core.leases)
                new = message(topic, b"new")
                new.priority = 0
                sending.send(new)
                (got,) = receive(reading, 1)
                return b"again" if got.delivery_attempt > 1 else bytes(got.body)

        assert await in_thread(work) == first


async def test_what_came_back_keeps_its_queue_if_that_is_set(tmp_path: Path) -> None:
    settings = {"broker__pop_separate_retry": True, "broker__priority_retry_percent": 100}
    async with grpc_broker(tmp_path, **settings) as server:
        at, topic = address(server), make_topic(server, "urgent", "PRIORITY", queues=3)

        def work() -> list[bytes]:
            with producer(at, topic) as sending, simple_consumer(at, "g", topic) as reading:
                receive(reading, 1, seconds=0.3)
                for value in (0, 2, 1):
                    sending.send(with_priority(topic, value))
                for _ in range(3):
                    receive(reading, 1, invisible_s=1)
                wait_until(lambda: not server.core.leases)
                return [bytes(each.body) for each in receive(reading, 3)]

        assert await in_thread(work) == [b"2", b"1", b"0"]
        assert server.broker.topics.require(SELF, "%RETRY%g_urgent").write_queues == 3


async def test_a_group_can_have_low_priorities_not_starve(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, client(server) as remoting:
        topic = make_topic(server, "urgent", "PRIORITY", queues=2)
        group = GroupConfig("fair", attributes={"priority.factor": "0"})
        server.broker.groups.put(SELF, group)
        for number in range(40):
            answer = await remoting.send(topic, b"x", {"UNIQ_KEY": "K", PRIORITY: str(number % 2)})
            assert answer.ext["queueId"] == str(number % 2)
        seen = set()
        for _ in range(20):
            answer = await remoting.ask(
                RequestCode.POP_MESSAGE,
                consumerGroup="fair",
                topic=topic,
                queueId=-1,
                maxMsgNums=1,
                invisibleTime=60_000,
                pollTime=0,
                bornTime=0,
                initMode=0,
            )
            seen.add(answer.ext["msgOffsetInfo"].split()[1])
        assert seen == {"0", "1"}


async def test_remoting_clients_are_not_held_to_the_type_of_a_topic(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, client(server) as remoting:
        anything = make_topic(server, "anything", "FIFO")
        for properties in ({"DELAY": "1"}, {"__SHARDINGKEY": "s"}, {PRIORITY: "3"}):
            answer = await remoting.send(anything, b"x", {"UNIQ_KEY": "K", **properties})
            assert answer.code == 0, answer.remark


def want(consumer: rocketmq.LiteSimpleConsumer, lite_topic: str) -> None:
    """Subscribe, once the client knows how many it may; it tells a single one letter by letter."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            consumer.subscribe_lite(lite_topic)
        except Exception:
            assert time.monotonic() < until
            time.sleep(0.1)
        else:
            consumer.subscribe_lite_all()
            return


async def test_lite_topics_are_read_by_those_who_want_them(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "chats", "LITE")
        listener = Listener(3)

        def work() -> None:
            pushed = rocketmq.LitePushConsumer(configuration(at), "people", topic, listener)
            pushed.startup()
            try:
                want(pushed, "room-1")
                with producer(at, topic) as sending:
                    for number in range(3):
                        for room in ("room-1", "room-2"):
                            made = message(topic, f"{room} {number}".encode())
                            made.lite_topic = room
                            sending.send(made)
                assert listener.enough.wait(SECONDS)
            finally:
                pushed.shutdown()
            simple = rocketmq.LiteSimpleConsumer(topic, configuration(at), "others", 1)
            simple.startup()
            try:
                want(simple, "room-2")
                got = receive(simple, 3)
                assert sorted(bytes(each.body) for each in got) == [
                    b"room-2 0",
                    b"room-2 1",
                    b"room-2 2",
                ]
                assert {each.lite_topic for each in got} == {"room-2"}
                for each in got:
                    simple.ack(each)
            finally:
                simple.shutdown()

        await in_thread(work)
        assert sorted(listener.bodies) == [b"room-1 0", b"room-1 1", b"room-1 2"]
        assert not server.core.leases


async def test_lite_topics_that_nobody_writes_to_are_forgotten(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "chats", "LITE")
        make_topic(server, "kept", "LITE")
        config = server.core.topics.require(topic)
        attributes = {**(config.attributes or {}), "lite.topic.expiration": "20"}
        server.broker.topics.create(SELF, replace(config, attributes=attributes))
        broker, gateway = server.broker, server.gateways["grpc"]

        def send(to: str, *rooms: str) -> None:
            with producer(at, to) as sending:
                for room in rooms:
                    made = message(to, b"x")
                    made.lite_topic = room
                    sending.send(made)

        await in_thread(send, topic, *(f"room-{each}" for each in range(30)))
        await in_thread(send, "kept", "room-0")
        server.core.offsets.commit("g", lite.queue_name(topic, "room-0"), 0, 1)
        now_ms, lifetimes_ms = server.context.clock.now_ms(), lite.lifetimes(broker)
        assert lifetimes_ms == {topic: 20 * 60_000}
        assert not lite.expired(broker, now_ms + 19 * 60_000, lifetimes_ms)
        found = lite.expired(broker, now_ms + 21 * 60_000, lifetimes_ms)
        assert len(found) == 30
        await in_thread(send, topic, "room-7")
        gateway._forget(found)  # type: ignore[attr-defined]
        queues = server.core.store.queue_table.by_topic
        await eventually(lambda: sum(name.startswith("%LMQ%") for name in queues) == 2)
        assert {lite.queue_name(topic, "room-7"), lite.queue_name("kept", "room-0")} < set(queues)
        assert server.core.offsets.get("g", lite.queue_name(topic, "room-0"), 0) is None
        await in_thread(send, topic, "room-0")
        assert server.core.store.max_offset(lite.queue_name(topic, "room-0"), 0) == 1
